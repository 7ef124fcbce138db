// Certificates inside the sparse decode: intervals against the true masses, the fallback that they
// trigger, and what is written down of both.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "attention/sparse_decode.h"
#include "policy/arm.h"
#include "policy/certify/certified_layer_test.h"

namespace winnow {
namespace {

using ::winnow::testing::kCertifiedShape;
using ::winnow::testing::NewCertifiedLayer;
using ::winnow::testing::PagedLayer;

constexpr int kKvHeads = kCertifiedShape.kv_heads;
constexpr int kGroup = kCertifiedShape.group;
constexpr int kHeads = kKvHeads * kGroup;
constexpr int kDim = kCertifiedShape.dim;
constexpr int kSlots = kCertifiedShape.slots;

struct Attended {
  std::vector<float> out;  // [H, D]
  AttentionAccount account;
};

class SparseCertifyTest : public ::testing::Test {
 protected:
  Attended Attend(const std::string& arm, const PagedLayer& layer, int n_layer = 5) {
    const std::unique_ptr<DecodePolicy> policy = MakeDecodePolicy(arm);
    Attended attended;
    attended.out.assign(static_cast<size_t>(kHeads) * kDim,
                        std::numeric_limits<float>::quiet_NaN());
    const SparseSlot slot{.query = {layer.queries(), layer.View()},
                          .out = attended.out.data(),
                          .account = &attended.account};
    SparseDecode sparse(&threads_);
    StageSeconds seconds;
    sparse.Attend(*policy, n_layer, {.query_heads = kHeads, .scale = layer.scale()},
                  std::span(&slot, 1), &seconds);
    return attended;
  }

  ThreadPool threads_{2};
};

TEST_F(SparseCertifyTest, WhatIsVacuousIsCalledSo) {
  auto layer = NewCertifiedLayer(5, 20 * kSlots);
  for (int64_t t = 0; t < 20 * kSlots; ++t) {
    for (int head = 0; head < kKvHeads; ++head) {
      for (float& x : layer->key(t, head)) x *= 4;  // logits that spread by four
    }
  }
  layer->Store(threads_);
  const AttentionAccount account =
      Attend("select=sketch,budget=64,certify=sample,n=0", *layer).account;
  EXPECT_EQ(account.statements.by_kind[static_cast<int>(StatementKind::kDeterministic)], kHeads);
  EXPECT_EQ(account.statements.vacuous[static_cast<int>(StatementKind::kDeterministic)], kHeads);
}

// The oracle's estimate is the truth up to float rounding, 1e-5 of the share, which every interval
// is wider than.
TEST_F(SparseCertifyTest, TheIntervalsOfADecodeStepHoldTheOraclesMasses) {
  const auto layer = NewCertifiedLayer(6, 40 * kSlots + 10);
  layer->Store(threads_);
  for (const std::string certify : {"sketch", "sketch,bits=4", "sketch,bits=2", "deterministic"}) {
    const AttentionAccount account =
        Attend("select=oracle,budget=160,certify=" + certify, *layer).account;
    EXPECT_EQ(account.statements.intervals, kHeads) << certify;
    EXPECT_EQ(account.statements.estimate_outside, 0) << certify;
    EXPECT_LE(account.statements.lo, account.mass_dropped) << certify;
    EXPECT_GE(account.statements.hi, account.mass_dropped) << certify;
    EXPECT_GT(account.bytes_certified, 0) << certify;
    EXPECT_EQ(account.heads.size(), 6 * kKvHeads);
    EXPECT_EQ(account.heads[5 * kKvHeads].intervals, kGroup);
    EXPECT_NEAR(account.heads[10].hi + account.heads[11].hi, account.statements.hi, 1e-12);
  }
  // Eight bits are 17 times finer than four.
  const auto width = [&](const std::string& bits) {
    return Attend("select=oracle,budget=160,certify=sketch,bits=" + bits, *layer)
        .account.statements.width_max;
  };
  EXPECT_LT(width("8"), 0.1);
  EXPECT_LT(4 * width("8"), width("4"));
}

// A heavy token in a page that the selector does not find.
class PlantedMass : public SparseCertifyTest {
 protected:
  static constexpr int64_t kTokens = 60 * kSlots;
  static constexpr int64_t kNeedle = 17 * kSlots + 5;
  static constexpr const char* kBlind = "select=recent,budget=64";

  PlantedMass() : layer_(NewCertifiedLayer(7, kTokens)) {
    layer_->Attract(kNeedle, 25);
    for (int head = 0; head < kKvHeads; ++head) {
      std::fill_n(layer_->value(kNeedle, head).begin(), kDim, 5.0f);
    }
    layer_->Store(threads_);
  }
  std::unique_ptr<PagedLayer> layer_;
};

TEST_F(PlantedMass, IsSeenByTheCertificateAndReadAtLast) {
  EXPECT_LT(std::abs(Attend(kBlind, *layer_).out[0]), 1);
  for (const std::string certify : {"sketch", "sketch,bits=2", "deterministic"}) {
    const Attended attended = Attend(std::string(kBlind) + ",tol=0.1,certify=" + certify, *layer_);
    // Twice widened from the end of the context, the needle's page is still among the others.
    EXPECT_EQ(attended.account.widened_certificate, kKvHeads) << certify;
    EXPECT_EQ(attended.account.fallback_certificate, kKvHeads) << certify;
    EXPECT_EQ(attended.account.fallback_mass, 0);
    EXPECT_EQ(attended.account.tokens_read, kTokens);
    for (float x : attended.out) EXPECT_NEAR(x, 5, 0.1);
    // What was merged of four reads is dense attention up to rounding.
    for (int head = 0; head < kHeads; ++head) {
      const std::vector<double> truth = layer_->Attention(head);
      for (int c = 0; c < kDim; ++c) {
        EXPECT_NEAR(attended.out[head * kDim + c], truth[c], 1e-4);
      }
    }
    EXPECT_EQ(attended.account.statements.by_kind[static_cast<int>(StatementKind::kExact)], kHeads);
    EXPECT_EQ(attended.account.statements.width_max, 0);
  }
}

TEST_F(PlantedMass, WideningEndsWhereItSuffices) {
  // The needle's page is the best of the unread by mass, so one widening finds it.
  const Attended attended =
      Attend("select=sketch,budget=32,recent=64,tol=0.9,certify=sketch", *layer_);
  EXPECT_EQ(attended.account.widened_certificate, 0);
  const Attended more = Attend("select=recent,budget=736,tol=0.1,certify=sketch", *layer_);
  // 23 of 57 middle pages, then 46 from the end: page 17 is among them, and what is left is
  // nothing.
  EXPECT_EQ(more.account.widened_certificate, kKvHeads);
  EXPECT_EQ(more.account.fallback_certificate, 0);
  EXPECT_LT(more.account.tokens_read, kTokens);
  for (float x : more.out) EXPECT_NEAR(x, 5, 0.1);
  EXPECT_LT(more.account.statements.hi_max, 0.01);
}

TEST_F(PlantedMass, FallbackMayBeDenseAtOnceOrOnlyReported) {
  const AttentionAccount dense =
      Attend(std::string(kBlind) + ",tol=0.1,fallback=dense,certify=sketch", *layer_).account;
  EXPECT_EQ(dense.widened_certificate, 0);
  EXPECT_EQ(dense.fallback_certificate, kKvHeads);
  EXPECT_EQ(dense.tokens_read, kTokens);
  const Attended capped =
      Attend(std::string(kBlind) + ",tol=0.1,fallback=cap,certify=sketch", *layer_);
  EXPECT_EQ(capped.account.capped_certificate, kKvHeads);
  EXPECT_EQ(capped.account.fallback_certificate, 0);
  EXPECT_EQ(capped.out, Attend(kBlind, *layer_).out);
  EXPECT_GT(capped.account.statements.lo, 0.9 * kHeads);
}

TEST_F(PlantedMass, EstimatesFallBackToo) {
  // The box misjudges nothing here, but the mean does: it takes the mass for flat.
  const AttentionAccount capped =
      Attend("select=sketch,budget=1,recent=1,sinks=0,tol=0.001,fallback=cap", *layer_).account;
  EXPECT_EQ(capped.capped_mass, 0);  // the needle's page alone holds all but 1e-4
  const AttentionAccount flat =
      Attend("select=vashista,budget=64,tol=0.1,fallback=cap", *layer_).account;
  EXPECT_EQ(flat.capped_mass, kKvHeads);
  EXPECT_EQ(flat.widened + flat.fallback_mass, 0);
  const AttentionAccount dense =
      Attend("select=vashista,budget=64,tol=0.1,fallback=dense", *layer_).account;
  EXPECT_EQ(dense.fallback_mass, kKvHeads);
  EXPECT_EQ(dense.widened, 0);
}

// The needle scores about 25 above the others.
TEST_F(PlantedMass, ASmallGapReadsEverything) {
  EXPECT_EQ(Attend("select=sketch,budget=64,gap=10", *layer_).account.fallback_gap, 0);
  const AttentionAccount small = Attend("select=sketch,budget=64,gap=40", *layer_).account;
  EXPECT_EQ(small.fallback_gap, kKvHeads);
  EXPECT_EQ(small.tokens_read, kTokens);
  const AttentionAccount capped =
      Attend("select=sketch,budget=64,gap=40,fallback=cap", *layer_).account;
  EXPECT_EQ(capped.capped_gap, kKvHeads);
  EXPECT_LT(capped.tokens_read, kTokens / 4);
}

// A NaN that nobody scanned is noticed by who bounds it, and read.
TEST_F(SparseCertifyTest, ANanInAnUnreadPageIsNoticed) {
  auto layer = NewCertifiedLayer(8, 40 * kSlots);
  layer->key(20 * kSlots + 3, 1)[10] = std::numeric_limits<float>::quiet_NaN();
  layer->Store(threads_);
  for (const std::string certify : {"sketch", "deterministic", "sample"}) {
    const Attended attended = Attend("select=recent,budget=64,certify=" + certify, *layer);
    EXPECT_EQ(attended.account.fallback_not_finite, 1) << certify;
    EXPECT_EQ(attended.account.fallback_certificate, 0) << certify;
    EXPECT_EQ(attended.account.statements.not_finite, kGroup) << certify;
    for (int head = 0; head < kHeads; ++head) {
      EXPECT_EQ(std::isnan(attended.out[head * kDim]), head >= kGroup) << certify;
    }
  }
}

TEST_F(SparseCertifyTest, TheSameSeedCertifiesTheSame) {
  const auto layer = NewCertifiedLayer(9, 40 * kSlots);
  layer->Store(threads_);
  const auto hi = [&](const std::string& seed, int n_layer) {
    return Attend("select=sketch,budget=512,certify=sample,n=2000,seed=" + seed, *layer, n_layer)
        .account.statements.hi;
  };
  EXPECT_EQ(hi("1", 4), hi("1", 4));
}

// The residual stands for what is left after widening, and no more.
TEST_F(PlantedMass, WhatWidenedIsNotEstimatedAsWell) {
  const auto error = [&](const std::string& arm) {
    const Attended attended = Attend(arm, *layer_);
    double largest = 0;
    for (int head = 0; head < kHeads; ++head) {
      const std::vector<double> truth = layer_->Attention(head);
      for (int c = 0; c < kDim; ++c) {
        largest = std::max(largest, std::abs(attended.out[head * kDim + c] - truth[c]));
      }
    }
    return largest;
  };
  // The needle's value is 5; estimated twice or with four bits it would be off by more.
  EXPECT_LT(error("select=sketch,budget=64,tol=0.00001,residual=sketch,tail=0,certify=sketch"),
            1e-3);
}

TEST_F(SparseCertifyTest, TheStatementsOfEstimatesAreEstimates) {
  const auto layer = NewCertifiedLayer(10, 40 * kSlots);
  layer->Store(threads_);
  const StatementAccount statements = Attend("select=sketch,budget=64", *layer).account.statements;
  EXPECT_EQ(statements.by_kind[static_cast<int>(StatementKind::kEstimate)], kHeads);
  EXPECT_EQ(statements.intervals, 0);
  const StatementAccount exact = Attend("select=all", *layer).account.statements;
  EXPECT_EQ(exact.by_kind[static_cast<int>(StatementKind::kExact)], kHeads);
  const StatementAccount none =
      Attend("select=sketch,budget=64,certify=none", *layer).account.statements;
  EXPECT_EQ(std::accumulate(none.by_kind.begin(), none.by_kind.end(), int64_t{0}), 0);
}

}  // namespace
}  // namespace winnow
