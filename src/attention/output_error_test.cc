// Bounds of the output's error inside the sparse decode, against attention over everything in
// double; the fallback that they trigger, and what is written down.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "attention/sparse_decode.h"
#include "ops/paged_layer_test.h"
#include "policy/arm.h"

namespace winnow {
namespace {

using ::winnow::testing::LayerShape;
using ::winnow::testing::PagedLayer;

constexpr int kDim = 32;
constexpr int kSlots = 32;

const std::vector<std::string>& Certificates() {
  static const std::vector<std::string> kCertificates = {"sketch", "sketch,bits=4", "sketch,bits=2",
                                                         "deterministic", "sample,n=64,delta=1e-6"};
  return kCertificates;
}
const std::vector<std::string>& Residuals() {
  static const std::vector<std::string> kResiduals = {"none", "centroid", "sketch", "cumulant",
                                                      "sample,n=16"};
  return kResiduals;
}

std::string ArmOf(const std::string& certify, const std::string& residual,
                  const std::string& rule = "budget=64") {
  return "select=sketch,bits=4,dense_layers=0,recent=32," + rule + ",residual=" + residual +
         ",certify=" + certify;
}

std::unique_ptr<PagedLayer> NewLayer(uint64_t seed, int64_t n_tokens, int group = 1,
                                     int kv_heads = 1, DType dtype = DType::kF32) {
  static const PlaneSet kPlanes = [] {
    std::vector<std::string> arms;
    for (const std::string& certify : Certificates()) {
      for (const std::string& residual : Residuals()) arms.push_back(ArmOf(certify, residual));
    }
    return ArmPlanes(arms);
  }();
  return std::make_unique<PagedLayer>(
      LayerShape{
          .kv_heads = kv_heads, .group = group, .dim = kDim, .slots = kSlots, .n_tokens = n_tokens},
      kPlanes, dtype, seed);
}

struct Attended {
  std::vector<float> out;  // [H, D]
  AttentionAccount account;
};

class OutputErrorTest : public ::testing::Test {
 protected:
  Attended Attend(const std::string& arm, const PagedLayer& layer) {
    const std::unique_ptr<DecodePolicy> policy = MakeDecodePolicy(arm);
    Attended attended;
    attended.out.assign(static_cast<size_t>(layer.query_heads()) * kDim,
                        std::numeric_limits<float>::quiet_NaN());
    const SparseSlot slot{.query = {layer.queries(), layer.View()},
                          .out = attended.out.data(),
                          .account = &attended.account};
    SparseDecode sparse(&threads_);
    StageSeconds seconds;
    sparse.Attend(*policy, 0, {.query_heads = layer.query_heads(), .scale = layer.scale()},
                  std::span(&slot, 1), &seconds);
    return attended;
  }

  static double TrueError(const PagedLayer& layer, const Attended& attended, int head) {
    const std::vector<double> truth = layer.Attention(head);
    double squares = 0;
    for (int c = 0; c < kDim; ++c) {
      const double off = attended.out[head * kDim + c] - truth[c];
      squares += off * off;
    }
    return std::sqrt(squares);
  }

  ThreadPool threads_{2};
};

constexpr int kLayerKinds = 9;

void ForEachRow(PagedLayer& layer, const auto& change) {
  for (int64_t t = 0; t < layer.shape().n_tokens; ++t)
    change(t, layer.key(t, 0), layer.value(t, 0));
}

// Kinds: 0 normal, 1 heavy tokens with values apart, 2 equal keys, 3 huge keys, 4 huge values, 5
// one value apart in each page, 6 little spread, 7 all the same, 8 logits far from zero.
void Shape(int kind, PagedLayer& layer) {
  ForEachRow(layer, [&](int64_t t, std::span<float> k, std::span<float> v) {
    const float sign = t % 2 == 0 ? 1.0f : -1.0f;
    for (size_t c = 0; c < k.size(); ++c) {
      if (kind == 2) k[c] = layer.key(0, 0)[c];
      if (kind == 3) k[c] *= 1e4f;
      if (kind == 4) v[c] *= 1e3f;
      if (kind == 5 && t % kSlots == 7) v[c] = 100 * sign;
      if (kind == 6) k[c] *= 0.1f;
      if (kind == 6) v[c] = 1 + 0.1f * v[c];
      if (kind == 7) k[c] = v[c] = 0.5f;
      if (kind == 8) k[c] += 50 * layer.q(0)[c];
    }
  });
  if (kind != 1) return;
  for (const int64_t t : {int64_t{37}, int64_t{150}, int64_t{200}}) {
    layer.Attract(t, 8);
    std::fill_n(layer.value(t, 0).begin(), kDim, t == 150 ? -20.0f : 20.0f);
  }
}

// The bound includes the rounding of the float kernels, and the reference is in double: no
// tolerance.
TEST_F(OutputErrorTest, BoundsHoldForEveryCertificateAndResidual) {
  std::array<int, 3> kinds{};
  int vacuous = 0;
  for (uint64_t trial = 0; trial < 4 * kLayerKinds; ++trial) {
    const DType dtype = trial % 2 == 0 ? DType::kF32 : DType::kF16;
    const auto layer =
        NewLayer(100 + trial, 9 * kSlots + static_cast<int64_t>(trial % 5) * 6, 1, 1, dtype);
    const int kind = static_cast<int>(trial % kLayerKinds);
    Shape(kind, *layer);
    layer->Store(threads_);
    for (const std::string& certify : Certificates()) {
      for (const std::string& residual : Residuals()) {
        const Attended attended = Attend(ArmOf(certify, residual), *layer);
        const OutputErrorAccount& errors = attended.account.output_errors;
        // What a sketch cannot hold is read in full.
        if (errors.bounds == 0) continue;
        // Where everything was read the rounding of dense attention is left: 1e-7 of values up to
        // a norm of 6e3.
        ASSERT_GE(errors.absolute_max + (errors.by_kind[0] > 0 ? 1e-3 : 0),
                  TrueError(*layer, attended, 0))
            << "trial " << trial << ", certify=" << certify << ", residual=" << residual;
        ASSERT_EQ(errors.by_kind[static_cast<int>(StatementKind::kEstimate)], 0);
        for (size_t i = 0; i < kinds.size(); ++i) kinds[i] += errors.by_kind[i] > 0 ? 1 : 0;
        vacuous += errors.AllVacuous() > 0 ? 1 : 0;
      }
    }
  }
  const int all = std::accumulate(kinds.begin(), kinds.end(), 0);
  EXPECT_GT(all, 500);
  EXPECT_GT(kinds[static_cast<int>(StatementKind::kDeterministic)], 400);
  EXPECT_GT(vacuous, 10);
  EXPECT_LT(vacuous, all / 2);
}

TEST_F(OutputErrorTest, ShortLayersAreBoundedToo) {
  for (const int64_t n_tokens : {1, 31, 32, 33, 65, 97, 129}) {
    const auto layer = NewLayer(7, n_tokens);
    layer->Store(threads_);
    const std::string arm = ArmOf("sketch", "none", "budget=32,sinks=0");
    if (!SparseDecode::Applies(*MakeDecodePolicy(arm), 0, n_tokens, 0, kSlots)) continue;
    const Attended attended = Attend(arm, *layer);
    const OutputErrorAccount& errors = attended.account.output_errors;
    EXPECT_EQ(errors.bounds, 1) << n_tokens;
    EXPECT_GE(errors.absolute_max + 1e-5, TrueError(*layer, attended, 0)) << n_tokens;
  }
}

// Keys of little spread, values around a common one: what is left out is much like what was read.
TEST_F(OutputErrorTest, TellsSomethingWhereDataIsBenign) {
  const auto layer = NewLayer(11, 20 * kSlots);
  Shape(6, *layer);
  layer->Store(threads_);
  for (const std::string residual : {"none", "centroid", "sketch"}) {
    const Attended attended = Attend(ArmOf("sketch,bits=8", residual), *layer);
    const OutputErrorAccount& errors = attended.account.output_errors;
    EXPECT_EQ(errors.by_kind[static_cast<int>(StatementKind::kDeterministic)], 1);
    EXPECT_EQ(errors.AllVacuous(), 0) << residual;
    // Three quarters of the mass are unread. Values alone would allow 0.1 of the norm: they are
    // within 0.1·√32 of a common value of norm √32.
    EXPECT_LT(errors.relative_max, 0.03) << residual;
    EXPECT_GT(errors.relative_max, 0);
  }
}

TEST_F(OutputErrorTest, CallsItselfVacuousWhereLogitsSpread) {
  const auto layer = NewLayer(12, 20 * kSlots);
  ForEachRow(*layer, [](int64_t, std::span<float> k, std::span<float>) {
    for (float& x : k) x *= 10;
  });
  layer->Store(threads_);
  const OutputErrorAccount errors =
      Attend(ArmOf("deterministic", "none"), *layer).account.output_errors;
  EXPECT_EQ(errors.AllVacuous(), 1);
  EXPECT_EQ(errors.bounds, 1);
}

TEST_F(OutputErrorTest, EverythingReadIsExact) {
  const auto layer = NewLayer(13, 20 * kSlots);
  layer->Store(threads_);
  const OutputErrorAccount errors =
      Attend(ArmOf("sketch", "none", "budget=100000"), *layer).account.output_errors;
  EXPECT_EQ(errors.by_kind[static_cast<int>(StatementKind::kExact)], 1);
  EXPECT_EQ(errors.absolute_max, 0);
}

TEST_F(OutputErrorTest, NothingIsBoundedWithoutACertificate) {
  const auto layer = NewLayer(14, 20 * kSlots);
  layer->Store(threads_);
  for (const std::string certify : {"estimate", "none"}) {
    const OutputErrorAccount errors = Attend(ArmOf(certify, "none"), *layer).account.output_errors;
    EXPECT_EQ(errors.bounds + errors.not_finite, 0);
  }
}

// A NaN among the values of a page that nobody reads.
TEST_F(OutputErrorTest, ANanValueInAnUnreadPageIsNoticed) {
  auto layer = NewLayer(15, 20 * kSlots, 3, 2);
  layer->value(10 * kSlots + 3, 1)[10] = std::numeric_limits<float>::quiet_NaN();
  layer->Store(threads_);
  for (const std::string certify : {"deterministic", "sample"}) {
    const Attended attended =
        Attend("select=recent,recent=32,budget=64,dense_layers=0,certify=" + certify, *layer);
    EXPECT_EQ(attended.account.fallback_not_finite, 1) << certify;
    EXPECT_EQ(attended.account.fallback_error, 0) << certify;
    EXPECT_EQ(attended.account.output_errors.not_finite, 0) << certify;
    for (int head = 0; head < 6; ++head) {
      EXPECT_EQ(std::isnan(attended.out[head * kDim + 10]), head >= 3) << certify;
    }
  }
}

// Little unread mass with values far from all others: only the output's error shows it.
class PlantedValue : public OutputErrorTest {
 protected:
  static constexpr int64_t kTokens = 40 * kSlots;
  static constexpr int64_t kNeedle = 11 * kSlots + 5;
  static constexpr int kKvHeads = 2;

  PlantedValue() : layer_(NewLayer(21, kTokens, 3, kKvHeads)) {
    for (int head = 0; head < kKvHeads; ++head) {
      std::fill_n(layer_->value(kNeedle, head).begin(), kDim, 1000.0f);
    }
    layer_->Store(threads_);
  }
  static std::string Blind(const std::string& rule, const std::string& residual = "none") {
    return "select=recent,recent=32,budget=128,dense_layers=0" + rule + ",residual=" + residual +
           ",certify=sketch";
  }
  std::unique_ptr<PagedLayer> layer_;
};

TEST_F(PlantedValue, IsReadAtLast) {
  for (const std::string residual : {"none", "centroid", "sample"}) {
    const Attended attended = Attend(Blind(",tol_error=0.5", residual), *layer_);
    EXPECT_EQ(attended.account.widened_error, kKvHeads) << residual;
    EXPECT_EQ(attended.account.fallback_error, kKvHeads) << residual;
    EXPECT_EQ(attended.account.widened_certificate + attended.account.fallback_certificate, 0);
    EXPECT_EQ(attended.account.tokens_read, kTokens) << residual;
    EXPECT_EQ(attended.account.output_errors.absolute_max, 0) << residual;
    // Four reads merged are dense attention up to the rounding of sums of up to 1000.
    for (int head = 0; head < layer_->query_heads(); ++head) {
      EXPECT_LT(TrueError(*layer_, attended, head), 1e-3) << residual;
    }
  }
}

// The others are estimated again, to the same bits.
TEST_F(OutputErrorTest, OnlyHeadsAboveToleranceReadMore) {
  const auto layer = NewLayer(22, 40 * kSlots, 3, 2);
  Shape(6, *layer);  // of KV head 0
  std::fill_n(layer->value(11 * kSlots + 5, 1).begin(), kDim, 5e4f);
  layer->Store(threads_);
  for (const std::string& residual : Residuals()) {
    const Attended as_it_is = Attend(ArmOf("sketch", residual), *layer);
    const Attended attended = Attend(ArmOf("sketch", residual, "budget=64,tol_error=0.5"), *layer);
    EXPECT_EQ(std::max(attended.account.fallback_error, attended.account.widened_error), 1)
        << residual;
    EXPECT_LE(attended.account.heads[1].error_max, 1.5) << residual;
    EXPECT_EQ(attended.account.heads[0].error, as_it_is.account.heads[0].error) << residual;
    EXPECT_EQ(attended.account.heads[0].dense + attended.account.heads[0].widened, 0) << residual;
    for (int i = 0; i < 3 * kDim; ++i) EXPECT_EQ(attended.out[i], as_it_is.out[i]) << residual;
  }
}

TEST_F(PlantedValue, MayBeReadAtOnceOrOnlyReported) {
  const AttentionAccount dense = Attend(Blind(",tol_error=0.5,fallback=dense"), *layer_).account;
  EXPECT_EQ(dense.widened_error, 0);
  EXPECT_EQ(dense.fallback_error, kKvHeads);
  const Attended capped = Attend(Blind(",tol_error=0.5,fallback=cap"), *layer_);
  EXPECT_EQ(capped.account.capped_error, kKvHeads);
  EXPECT_EQ(capped.account.fallback_error + capped.account.widened_error, 0);
  for (int head = 0; head < layer_->query_heads(); ++head) {
    EXPECT_LE(TrueError(*layer_, capped, head), capped.account.output_errors.absolute_max);
  }
  // Far tolerances are met as it is.
  const AttentionAccount wide = Attend(Blind(",tol_error=1e6"), *layer_).account;
  EXPECT_EQ(wide.fallback_error + wide.widened_error + wide.capped_error, 0);
}

TEST_F(PlantedValue, HeadsAddUpToTheWhole) {
  const AttentionAccount account = Attend(Blind(""), *layer_).account;
  ASSERT_EQ(account.heads.size(), static_cast<size_t>(kKvHeads));
  EXPECT_EQ(account.output_errors.bounds, layer_->query_heads());
  EXPECT_EQ(account.heads[0].error_bounds, 3);
  EXPECT_NEAR(account.heads[0].error + account.heads[1].error, account.output_errors.relative,
              1e-12 * account.output_errors.relative);
  EXPECT_EQ(std::max(account.heads[0].error_max, account.heads[1].error_max),
            account.output_errors.relative_max);
  EXPECT_GT(account.bytes_certified, 0);
}

}  // namespace
}  // namespace winnow
