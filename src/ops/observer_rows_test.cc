#include "ops/observer_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "core/rng.h"
#include "ops/paged_layer_test.h"
#include "ops/prefill_attention.h"

// The choice of targets comes before Highway.
// clang-format off
#include "ops/simd_targets.h"
#include <hwy/highway.h>
// clang-format on

namespace winnow {
namespace {

constexpr double kUnit = 0x1p-24;  // half an ulp of f32 at 1

struct Case {
  testing::LayerShape shape;
  DType dtype = DType::kF32;
  int64_t n_observers = 1;
  int64_t first_proposal = 0;
  int64_t n_protected = 0;   // first tokens without a chunk
  int64_t chunk_tokens = 1;  // 0: no chunks
  int64_t window = 0;
};

struct Tables {
  std::vector<float> mean;   // [H, T]
  std::vector<double> mass;  // [H·U, k]
  bool finite = false;
};

// The observers are the last tokens of the layer; all before them but the protected are chunks.
class Observed {
 public:
  explicit Observed(const Case& c, float spread = 1)
      : case_(c), layer_(c.shape, {}, c.dtype, 7), threads_(1) {
    layer_.Store(threads_);
    Rng rng(11);
    q_.resize(c.n_observers * query_heads() * c.shape.dim);
    for (float& x : q_) x = spread * static_cast<float>(rng.Normal());
    const int64_t first = n_tokens() - c.n_observers;
    for (int64_t u = 0; u < c.n_observers; ++u) {
      end_.push_back(first + u + 1);
      begin_.push_back(c.window == 0 ? 0 : std::max<int64_t>(0, end_.back() - c.window));
    }
    chunk_of_.assign(n_tokens(), -1);
    if (c.chunk_tokens == 0) return;
    for (int64_t t = c.n_protected; t < first; ++t) {
      chunk_of_[t] = static_cast<int32_t>((t - c.n_protected) / c.chunk_tokens);
      n_chunks_ = chunk_of_[t] + 1;
    }
  }

  int64_t query_heads() const { return layer_.query_heads(); }
  int64_t n_tokens() const { return case_.shape.n_tokens; }
  int64_t n_observers() const { return case_.n_observers; }
  int64_t n_chunks() const { return n_chunks_; }
  float* q(int64_t u, int64_t head) {
    return q_.data() + (u * query_heads() + head) * case_.shape.dim;
  }

  ObserverRowsParams Params() const {
    return {.q = {q_.data(), {n_observers(), query_heads(), case_.shape.dim}},
            .kv = layer_.View(),
            .begin = begin_,
            .end = end_,
            .scale = layer_.scale(),
            .chunk_of = chunk_of_,
            .n_chunks = n_chunks_,
            .first_proposal = case_.first_proposal};
  }

  Tables Read(int n_threads, std::span<const float> log_mass = {}) const {
    Tables tables;
    tables.mean.assign(query_heads() * n_tokens(), -1.0f);
    tables.mass.assign(query_heads() * n_observers() * n_chunks_, -1.0);
    ObserverRowsParams params = Params();
    if (!log_mass.empty()) params.log_mass = {log_mass.data(), {n_observers(), query_heads()}};
    ThreadPool pool(n_threads);
    ObserverRowsWorkspace workspace;
    tables.finite = ReadObserverRows(
        pool, params,
        {.mean_attention = {tables.mean.data(), {query_heads(), n_tokens()}},
         .chunk_mass = {tables.mass.data(), {query_heads() * n_observers(), n_chunks_}}},
        workspace);
    return tables;
  }

  // The main pass's own figures of the same rows, [U, H].
  std::vector<float> LogMass() const {
    std::vector<float> log_mass(n_observers() * query_heads());
    std::vector<float> out(q_.size());
    ThreadPool pool(1);
    PrefillWorkspace workspace;
    const ObserverRowsParams params = Params();
    PrefillAttention(pool,
                     {.q = params.q,
                      .out = {out.data(), params.q.shape},
                      .kv = params.kv,
                      .begin = begin_,
                      .end = end_,
                      .scale = params.scale,
                      .log_mass = log_mass.data()},
                     workspace, nullptr);
    return log_mass;
  }

  // One row in double, [T], and a bound of the relative error of its weights in the kernel. A score
  // is scale·log2(e)·q, rounded once, times k over D roundings, so it errs by at most (D +
  // 2)·u·Σ|q_d k_d|·scale, which counts twice, in the weight and in the sum; FastExp2 adds 2u to
  // each; fewer than 512 f32 additions of positive terms follow, each of u.
  std::vector<double> Row(int64_t head, int64_t u, double* error) {
    const auto rows = layer_.Stored(static_cast<int>(head));
    const int64_t dim = case_.shape.dim;
    std::vector<double> row(n_tokens());
    double largest = 0;
    double max = -std::numeric_limits<double>::infinity();
    for (int64_t t = begin_[u]; t < end_[u]; ++t) {
      double absolute = 0;
      for (int64_t d = 0; d < dim; ++d) {
        const double product = static_cast<double>(q(u, head)[d]) * rows.keys[t * dim + d];
        row[t] += layer_.scale() * product;
        absolute += layer_.scale() * std::abs(product);
      }
      largest = std::max(largest, absolute);
      max = std::max(max, row[t]);
    }
    double sum = 0;
    for (int64_t t = begin_[u]; t < end_[u]; ++t) sum += row[t] = std::exp(row[t] - max);
    for (int64_t t = begin_[u]; t < end_[u]; ++t) row[t] /= sum;
    *error = 2 * static_cast<double>(dim + 2) * kUnit * largest + (4 + 512) * kUnit;
    return row;
  }

  // `more_error`: of all weights, relative.
  void ExpectRight(const Tables& tables, double more_error) {
    EXPECT_TRUE(tables.finite);
    for (int64_t head = 0; head < query_heads(); ++head) {
      std::vector<double> mean(n_tokens());
      double worst = 0;
      const auto n_proposal = static_cast<double>(n_observers() - case_.first_proposal);
      for (int64_t u = 0; u < n_observers(); ++u) {
        double error = 0;
        const std::vector<double> row = Row(head, u, &error);
        error += more_error;
        worst = std::max(worst, error);
        std::vector<double> mass(n_chunks_);
        for (int64_t t = 0; t < n_tokens(); ++t) {
          if (u >= case_.first_proposal) mean[t] += row[t] / n_proposal;
          if (chunk_of_[t] >= 0) mass[chunk_of_[t]] += row[t];
        }
        for (int64_t c = 0; c < n_chunks_; ++c) {
          ASSERT_NEAR(tables.mass[(head * n_observers() + u) * n_chunks_ + c], mass[c],
                      error * mass[c])
              << "head " << head << ", observer " << u << ", chunk " << c;
        }
      }
      for (int64_t t = 0; t < n_tokens(); ++t) {
        ASSERT_NEAR(tables.mean[head * n_tokens() + t], mean[t], worst * mean[t])
            << "head " << head << ", token " << t;
      }
    }
  }

  std::vector<double> Output(std::span<const double> row, int64_t head) const {
    const auto rows = layer_.Stored(static_cast<int>(head));
    std::vector<double> out(case_.shape.dim);
    for (int64_t t = 0; t < n_tokens(); ++t) {
      for (size_t d = 0; d < out.size(); ++d) out[d] += row[t] * rows.values[t * out.size() + d];
    }
    return out;
  }
  std::span<const int32_t> chunk_of() const { return chunk_of_; }
  void Protect(int64_t first, int64_t last) {
    std::fill(chunk_of_.begin() + first, chunk_of_.begin() + last, -1);
  }

 private:
  Case case_;
  testing::PagedLayer layer_;
  ThreadPool threads_;
  std::vector<float> q_;  // [U, H, D]
  std::vector<int64_t> begin_, end_;
  std::vector<int32_t> chunk_of_;
  int64_t n_chunks_ = 0;
};

// Every shape on every instruction set that this machine has and the kernel is compiled for.
class ObserverRowsTest : public ::testing::TestWithParam<std::tuple<Case, int64_t>> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(std::get<1>(GetParam())); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
  static Case Shape() { return std::get<0>(GetParam()); }
};

std::vector<int64_t> Targets() {
  std::vector<int64_t> targets;
  for (int64_t all = hwy::SupportedTargets() & HWY_TARGETS; all != 0; all &= all - 1) {
    targets.push_back(all & -all);
  }
  return targets;
}

TEST_P(ObserverRowsTest, AgreesWithDouble) {
  Observed observed(Shape());
  observed.ExpectRight(observed.Read(1), 0);
}

// The main pass's log of a sum is rounded to f32: its error, |log| u, is a relative one of weights.
TEST_P(ObserverRowsTest, TakesTheSumsOfTheMainPass) {
  Observed observed(Shape());
  const std::vector<float> log_mass = observed.LogMass();
  double largest = 0;
  for (float x : log_mass) largest = std::max(largest, std::abs(static_cast<double>(x)));
  observed.ExpectRight(observed.Read(1, log_mass), largest * kUnit);
}

TEST_P(ObserverRowsTest, ThreadsChangeNoBit) {
  const Observed observed(Shape());
  const Tables one = observed.Read(1);
  for (int n_threads : {2, 3}) {
    const Tables more = observed.Read(n_threads);
    EXPECT_EQ(one.mean, more.mean);
    EXPECT_EQ(one.mass, more.mass);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, ObserverRowsTest,
    ::testing::Combine(
        ::testing::Values(
            Case{{.kv_heads = 1, .group = 1, .dim = 32, .n_tokens = 1}, DType::kF32, 1, 0, 0, 0},
            Case{{.kv_heads = 2, .group = 3, .dim = 64, .n_tokens = 700},
                 DType::kF16,
                 40,
                 8,
                 20,
                 96},
            // A chunk over three blocks of tokens, and 64 + 6 observers: more than one panel.
            Case{{.kv_heads = 1, .group = 2, .dim = 64, .n_tokens = 1700},
                 DType::kQ8_0,
                 70,
                 1,
                 5,
                 1400},
            // Rows with a tail, one-token chunks, pages that are no power of two.
            Case{{.kv_heads = 2, .group = 1, .dim = 40, .slots = 24, .n_tokens = 530},
                 DType::kF16,
                 10,
                 9,
                 0,
                 1},
            Case{{.kv_heads = 1, .group = 4, .dim = 20, .slots = 16, .n_tokens = 513},
                 DType::kF32,
                 17,
                 0,
                 512,
                 3},
            Case{{.kv_heads = 1, .group = 2, .dim = 32, .n_tokens = 1200},
                 DType::kF16,
                 33,
                 3,
                 10,
                 50,
                 200},
            // All observers, from the first token on.
            Case{{.kv_heads = 1, .group = 2, .dim = 32, .n_tokens = 60}, DType::kF32, 60, 0, 0, 4}),
        ::testing::ValuesIn(Targets())),
    [](const auto& info) {
      return std::string(hwy::TargetName(std::get<1>(info.param))) + "_" +
             std::to_string(info.index);
    });

TEST(ObserverRows, ProtectedTokensBetweenAndInsideChunks) {
  Observed observed(
      {{.kv_heads = 1, .group = 2, .dim = 32, .n_tokens = 1200}, DType::kF32, 4, 0, 0, 100});
  observed.Protect(95, 105);
  observed.Protect(120, 130);
  observed.Protect(500, 700);  // all of two chunks, and a boundary of blocks
  observed.ExpectRight(observed.Read(2), 0);
}

TEST(ObserverRows, SharpRowsDoNotOverflow) {
  // Scores of some thousands, next to which nothing else has weight.
  Observed observed(
      {{.kv_heads = 1, .group = 2, .dim = 64, .n_tokens = 900}, DType::kF32, 20, 0, 4, 32}, 1000);
  const Tables tables = observed.Read(2);
  EXPECT_TRUE(tables.finite);
  for (float x : tables.mean) EXPECT_TRUE(x >= 0 && x <= 1 + 20 * kUnit) << x;
}

TEST(ObserverRows, OneBadRowIsTold) {
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Observed observed(
        {{.kv_heads = 1, .group = 2, .dim = 64, .n_tokens = 700}, DType::kF16, 20, 4, 4, 96});
    std::fill_n(observed.q(17, 1), 64, bad);
    for (bool own : {true, false}) {
      const Tables tables = observed.Read(2, own ? std::vector<float>{} : observed.LogMass());
      EXPECT_FALSE(tables.finite);
      const int64_t k = observed.n_chunks();
      for (int64_t row = 0; row < 2 * 20; ++row) {
        for (int64_t c = 0; c < k; ++c) {
          EXPECT_EQ(std::isnan(tables.mass[row * k + c]), row == 20 + 17) << row << " " << c;
        }
      }
      for (int64_t t = 0; t < 700; ++t) {
        EXPECT_FALSE(std::isnan(tables.mean[t]));
        EXPECT_TRUE(std::isnan(tables.mean[700 + t]));
      }
    }
  }
}

TEST(ObserverRows, WhatARemovalChangesInOutputs) {
  Observed observed(
      {{.kv_heads = 2, .group = 3, .dim = 64, .n_tokens = 400}, DType::kF16, 12, 2, 20, 48});
  std::vector<uint8_t> removed(observed.n_chunks());
  for (size_t c = 0; c < removed.size(); c += 2) removed[c] = 1;
  const int64_t heads = observed.query_heads();
  const int64_t n = observed.n_observers();
  std::vector<double> norm(heads * n);
  std::vector<double> change(heads * n);
  ThreadPool pool(2);
  MeasureRemoval(pool, observed.Params(), removed,
                 {.norm = {norm.data(), {heads, n}}, .change = {change.data(), {heads, n}}});
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t u = 0; u < n; ++u) {
      double error = 0;
      std::vector<double> row = observed.Row(head, u, &error);
      const std::vector<double> all = observed.Output(row, head);
      double kept = 0;
      for (int64_t t = 0; t < observed.n_tokens(); ++t) {
        const int32_t chunk = observed.chunk_of()[t];
        if (chunk >= 0 && removed[chunk] != 0) row[t] = 0;
        kept += row[t];
      }
      for (double& x : row) x /= kept;
      const std::vector<double> retained = observed.Output(row, head);
      double norm_squared = 0;
      double change_squared = 0;
      for (size_t d = 0; d < all.size(); ++d) {
        norm_squared += all[d] * all[d];
        change_squared += (all[d] - retained[d]) * (all[d] - retained[d]);
      }
      // Weights err relatively, so the outputs by at most that much of the largest value's norm
      // (below 20 for 64 standard normal channels), doubled where both parts enter.
      EXPECT_NEAR(norm[head * n + u], std::sqrt(norm_squared), 20 * error);
      EXPECT_NEAR(change[head * n + u], std::sqrt(change_squared), 40 * error);
      EXPECT_GT(change[head * n + u], 0.01);
    }
  }
}

TEST(ObserverRows, RemovingNothingChangesNothing) {
  Observed observed(
      {{.kv_heads = 1, .group = 2, .dim = 32, .n_tokens = 100}, DType::kF32, 5, 0, 0, 10});
  const std::vector<uint8_t> none(observed.n_chunks());
  std::vector<double> norm(10);
  std::vector<double> change(10, -1.0);
  ThreadPool pool(1);
  MeasureRemoval(pool, observed.Params(), none,
                 {.norm = {norm.data(), {2, 5}}, .change = {change.data(), {2, 5}}});
  for (int i = 0; i < 10; ++i) {
    EXPECT_GT(norm[i], 0);
    EXPECT_EQ(change[i], 0);
  }
}

}  // namespace
}  // namespace winnow
