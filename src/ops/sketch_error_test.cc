// Bounds of sketched masses against the masses in double, through the engine's float path.
#include "ops/sketch_error.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "core/rng.h"
#include "ops/decode_attention.h"
#include "ops/every_target_test.h"
#include "ops/paged_layer_test.h"
#include "ops/sketch_scan.h"

namespace winnow {
namespace {

using ::winnow::testing::LayerShape;
using ::winnow::testing::OnEveryByteTarget;
using ::winnow::testing::PagedLayer;

// Pages of one layer, each of another kind: normal, an outlier, equal keys, huge norms, far from
// the origin with a small spread, zeros, one varying channel, two clusters.
constexpr int kKinds = 8;

void FillPage(PagedLayer& layer, int64_t page, int head, Rng& rng) {
  const int dim = layer.shape().dim;
  const int slots = layer.shape().slots;
  const int kind = static_cast<int>(page % kKinds);
  std::vector<float> centre(dim);
  for (float& x : centre) x = static_cast<float>(rng.Normal()) * (kind == 4 ? 100 : 1);
  for (int t = 0; t < slots; ++t) {
    const std::span<float> key = layer.key(page * slots + t, head);
    const float sign = rng.Below(2) == 0 ? 1.0f : -1.0f;
    for (int c = 0; c < dim; ++c) {
      const auto noise = static_cast<float>(rng.Normal());
      float x = noise;
      if (kind == 1 && t == 5) x = 40 * noise;
      if (kind == 2) x = centre[c];
      if (kind == 3) x = 4000 * noise;
      if (kind == 4) x = centre[c] + 0.01f * noise;
      if (kind == 5) x = 0;
      if (kind == 6) x = centre[c] + (c == 0 ? 3 * noise : 0);
      if (kind == 7) x = sign * centre[c] + 0.01f * noise;
      key[c] = x;
    }
  }
}

// Masses or their bounds of every query head and page.
struct Scanned {
  explicit Scanned(const PagedLayer& layer)
      : max(layer.query_heads() * layer.n_full()), sum(max.size()) {}
  PageScanQuery Query(const PagedLayer& layer) {
    return {.q = layer.queries(),
            .kv = layer.View(),
            .masses = {.n_pages = layer.n_full(),
                       .stride = layer.n_full(),
                       .max = max.data(),
                       .sum = sum.data()}};
  }
  std::vector<float> max, sum;
};

// log Σ e^{q·k} of a page and the largest Σ |q_c·k_c| of its tokens.
struct PageTruth {
  double log_mass = -std::numeric_limits<double>::infinity();
  double magnitude = 0;
};
PageTruth TruthOf(const PagedLayer& layer, const PagedLayer::Rows& rows, int head, int64_t page) {
  const int dim = layer.shape().dim;
  PageTruth truth;
  std::vector<double> scores;
  for (int64_t t = page * layer.shape().slots; t < (page + 1) * layer.shape().slots; ++t) {
    double score = 0;
    double magnitude = 0;
    for (int c = 0; c < dim; ++c) {
      const double x =
          static_cast<double>(layer.scale()) * layer.q(head)[c] * rows.keys[t * dim + c];
      score += x;
      magnitude += std::abs(x);
    }
    scores.push_back(score);
    truth.magnitude = std::max(truth.magnitude, magnitude);
  }
  const double top = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double score : scores) sum += std::exp(score - top);
  truth.log_mass = top + std::log(sum);
  return truth;
}

class SketchErrorsTest : public ::testing::TestWithParam<DType> {
 protected:
  // The largest share of the bound that an error takes.
  double Check(const LayerShape& shape, int bits, uint64_t seed) {
    PagedLayer layer(shape, {KeySketchPlane(bits)}, GetParam(), seed);
    Rng rng(seed);
    for (int64_t page = 0; page < layer.n_full(); ++page) {
      for (int head = 0; head < shape.kv_heads; ++head) FillPage(layer, page, head, rng);
    }
    layer.Store(threads_);
    Scanned masses(layer);
    Scanned errors(layer);
    const DecodeAttentionParams params{.query_heads = layer.query_heads(), .scale = layer.scale()};
    PageScanWorkspace workspace;
    const PageScanQuery scanned = masses.Query(layer);
    SketchScan(threads_, std::span(&scanned, 1), params, bits, workspace, nullptr);
    const PageScanQuery bounded = errors.Query(layer);
    int64_t bytes = 0;
    SketchErrors(threads_, std::span(&bounded, 1), params, bits, workspace, &bytes);
    EXPECT_EQ(bytes, layer.n_full() * shape.kv_heads *
                         static_cast<int64_t>(SketchGridBytes(layer.layout().padded_dim)));
    double largest = 0;
    for (int head = 0; head < layer.query_heads(); ++head) {
      const PagedLayer::Rows rows = layer.Stored(head);
      for (int64_t page = 0; page < layer.n_full(); ++page) {
        const PageTruth truth = TruthOf(layer, rows, head, page);
        const size_t at = head * layer.n_full() + page;
        const double sketched = masses.max[at] + std::log(static_cast<double>(masses.sum[at]));
        const double error = std::abs(sketched - truth.log_mass);
        EXPECT_LE(error, errors.max[at]) << bits << " bits, page " << page << ", head " << head;
        EXPECT_LE(truth.magnitude, errors.sum[at]);
        largest = std::max(largest, error / errors.max[at]);
        ++pages_checked_;
      }
    }
    return largest;
  }

  ThreadPool threads_{2};
  int64_t pages_checked_ = 0;
};

TEST_P(SketchErrorsTest, ContainTheTruthOfTenThousandPages) {
  uint64_t seed = 1;
  int n_targets = 0;
  OnEveryByteTarget([&] {
    ++n_targets;
    for (const int bits : {2, 4, 8}) {
      double largest = 0;
      for (const LayerShape& shape :
           {LayerShape{2, 3, 64, 32, 32 * 40 + 7}, LayerShape{1, 5, 96, 16, 16 * 40},
            LayerShape{2, 1, 128, 64, 64 * 24}, LayerShape{1, 3, 512, 16, 16 * 16}}) {
        largest = std::max(largest, Check(shape, bits, seed++));
      }
      // No bound that is out of reach would be of use.
      EXPECT_GT(largest, 0.1) << bits;
    }
  });
  EXPECT_EQ(pages_checked_, 1608 * n_targets);
}

INSTANTIATE_TEST_SUITE_P(Types, SketchErrorsTest,
                         ::testing::Values(DType::kF32, DType::kF16, DType::kQ8_0));

TEST(SketchErrors, NotANumberIsNeverABound) {
  ThreadPool threads(1);
  PagedLayer layer({1, 2, 64, 32, 96}, {Plane::kKeys8}, DType::kF32, 3);
  layer.key(40, 0)[7] = std::numeric_limits<float>::quiet_NaN();
  layer.key(70, 0)[7] = 1e6f;  // beyond f16
  layer.Store(threads);
  Scanned errors(layer);
  const PageScanQuery query = errors.Query(layer);
  PageScanWorkspace workspace;
  SketchErrors(threads, std::span(&query, 1),
               {.query_heads = layer.query_heads(), .scale = layer.scale()}, 8, workspace, nullptr);
  for (int head = 0; head < 2; ++head) {
    EXPECT_TRUE(std::isfinite(errors.max[head * 3]));
    EXPECT_TRUE(std::isfinite(errors.sum[head * 3]));
    for (int page = 1; page < 3; ++page) {
      EXPECT_TRUE(std::isnan(errors.max[head * 3 + page]));
      EXPECT_TRUE(std::isnan(errors.sum[head * 3 + page]));
    }
  }
}

// Scores of a hundred and of a hundredth: relative and absolute rounding.
TEST(DecodeErrors, BoundTheKernel) {
  ThreadPool threads(2);
  for (const float size : {0.01f, 1.0f, 10.0f, 100.0f}) {
    for (const DType dtype : {DType::kF32, DType::kF16}) {
      PagedLayer layer({2, 3, 64, 32, 2005}, {}, dtype, 5);
      for (int64_t t = 0; t < 2005; ++t) {
        for (int head = 0; head < 2; ++head) {
          for (float& x : layer.key(t, head)) x *= size;
        }
      }
      layer.Store(threads);
      std::vector<float> out(6 * 64);
      std::vector<float> log_mass(6);
      const DecodeQuery query{.q = layer.queries(),
                              .kv = layer.View(),
                              .end = 2005,
                              .out = out.data(),
                              .log_mass = log_mass.data()};
      DecodeWorkspace workspace;
      DecodeAttention(threads, std::span(&query, 1), {.query_heads = 6, .scale = layer.scale()},
                      workspace, nullptr);
      for (int head = 0; head < 6; ++head) {
        const PagedLayer::Rows rows = layer.Stored(head);
        double top = -1e300;
        double magnitude = 0;
        double total = 0;
        for (int64_t t = 0; t < 2005; ++t) {
          double score = 0;
          double of_token = 0;
          for (int c = 0; c < 64; ++c) {
            const double x =
                static_cast<double>(layer.scale()) * layer.q(head)[c] * rows.keys[t * 64 + c];
            score += x;
            of_token += std::abs(x);
          }
          magnitude = std::max(magnitude, of_token);
          if (score > top) {
            total *= std::exp(top - score);
            top = score;
          }
          total += std::exp(score - top);
        }
        const double log_mass_error = DecodeLogMassError(64, 2005, magnitude);
        EXPECT_NEAR(log_mass[head], top + std::log(total), log_mass_error) << size;
        const std::vector<double> truth = layer.Attention(head);
        double off = 0;
        for (int c = 0; c < 64; ++c) off += std::pow(out[head * 64 + c] - truth[c], 2);
        double largest = 0;
        for (int64_t t = 0; t < 2005; ++t) {
          const double* value = rows.values.data() + t * 64;
          largest = std::max(largest, std::sqrt(std::inner_product(value, value + 64, value, 0.0)));
        }
        EXPECT_LE(std::sqrt(off), largest * DecodeOutputError(2005, log_mass_error)) << size;
      }
    }
  }
}

}  // namespace
}  // namespace winnow
