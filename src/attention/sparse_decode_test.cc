// One layer of a sparse decode step against dense attention: what is read, what stands for the
// rest, and what is written down of it.
#include "attention/sparse_decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "ops/paged_layer_test.h"
#include "policy/arm.h"

namespace winnow {
namespace {

using ::winnow::testing::LayerShape;
using ::winnow::testing::PagedLayer;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Attended {
  std::vector<float> out;  // [H, D]
  AttentionAccount account;
};

class SparseDecodeTest : public ::testing::Test {
 protected:
  static constexpr int64_t kTokens = 1290;  // 40 pages and ten tokens
  static constexpr int64_t kPages = 41;
  static constexpr int kKvHeads = 2;
  static constexpr int kHeads = 6;
  static constexpr int kDim = 64;

  static std::unique_ptr<PagedLayer> NewLayer(uint64_t seed, DType dtype = DType::kF32,
                                              int64_t n_tokens = kTokens) {
    static const PlaneSet kAllPlanes = ArmPlanes(
        {"residual=sketch", "select=sketch,bits=8", "select=sketch,bits=2,residual=sketch,bits=2",
         "select=cascade", "select=quest,residual=centroid"});
    return std::make_unique<PagedLayer>(LayerShape{kKvHeads, kHeads / kKvHeads, kDim, 32, n_tokens},
                                        kAllPlanes, dtype, seed);
  }
  // With random keys and values.
  std::unique_ptr<PagedLayer> RandomLayer(uint64_t seed, DType dtype = DType::kF32,
                                          int64_t n_tokens = kTokens) {
    auto layer = NewLayer(seed, dtype, n_tokens);
    layer->Store(threads_);
    return layer;
  }

  static DecodeAttentionParams Params(const PagedLayer& layer) {
    return {.query_heads = kHeads, .scale = layer.scale()};
  }

  // The layers as one step of one arm.
  static std::vector<Attended> Attend(ThreadPool& threads, const std::string& arm,
                                      const std::vector<const PagedLayer*>& layers) {
    const std::unique_ptr<DecodePolicy> policy = MakeDecodePolicy(arm);
    std::vector<Attended> attended(layers.size());
    std::vector<SparseSlot> slots;
    for (size_t i = 0; i < layers.size(); ++i) {
      // What is not written stays visible.
      attended[i].out.assign(static_cast<size_t>(kHeads) * kDim, kNan);
      slots.push_back({.query = {layers[i]->queries(), layers[i]->View()},
                       .out = attended[i].out.data(),
                       .account = &attended[i].account});
    }
    SparseDecode sparse(&threads);
    StageSeconds seconds;
    sparse.Attend(*policy, /*layer=*/5, Params(*layers[0]), slots, &seconds);
    return attended;
  }
  Attended Attend(const std::string& arm, const PagedLayer& layer) {
    return Attend(threads_, arm, {&layer})[0];
  }

  std::vector<float> Dense(const PagedLayer& layer) {
    std::vector<float> out(static_cast<size_t>(kHeads) * kDim);
    const DecodeQuery query{
        .q = layer.queries(), .kv = layer.View(), .end = layer.shape().n_tokens, .out = out.data()};
    DecodeWorkspace workspace;
    DecodeAttention(threads_, std::span(&query, 1), Params(layer), workspace, nullptr);
    return out;
  }

  ThreadPool threads_{2};
};

// √Σ(a − b)² over √Σb².
double RelativeError(const std::vector<float>& a, const std::vector<float>& b) {
  double errors = 0;
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    errors += std::pow(static_cast<double>(a[i]) - b[i], 2);
    squares += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(errors / squares);
}

TEST_F(SparseDecodeTest, ReadingEveryPageGivesDensesBits) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kQ8_0}) {
    const auto layer = RandomLayer(1, dtype);
    for (const std::string arm :
         {"select=all", "select=all,residual=centroid", "select=sketch,budget=4096",
          "select=sketch,budget=4096,residual=sketch", "select=sketch,mass=1",
          "select=oracle,mass=1", "select=cascade,budget=4096"}) {
      const Attended attended = Attend(arm, *layer);
      EXPECT_EQ(attended.out, Dense(*layer)) << arm;
      EXPECT_EQ(attended.account.tokens_read, kTokens) << arm;
      EXPECT_EQ(attended.account.tokens_resident, kTokens) << arm;
    }
  }
}

// Values are N(0, 1); 32 of them range over about 4.2, so a 4-bit (2-bit) step is 0.28 (1.4) and
// the error of a value, uniform in a step, has deviation 0.081 (0.40). It is independent of the
// weights, so the output, Σ p·v, is off by that much of its own deviation √Σp². A 4-bit key is off
// by 0.081 a channel, a score with q and k of N(0, 1) by as much, and a weight by 8 %, independent
// of the value: 0.081·√2 together. 8-bit keys are 17 times finer. 384 channels give the root mean
// square within 11 % (three deviations).
TEST_F(SparseDecodeTest, TheEstimateIsAsFarFromDenseAsItsBitsSay) {
  const auto layer = RandomLayer(2);
  const std::vector<float> dense = Dense(*layer);
  const auto error = [&](const std::string& arm) {
    return RelativeError(Attend(arm, *layer).out, dense);
  };
  EXPECT_LT(error("select=sketch,bits=8,budget=64,residual=sketch,bits=4,tail=0"), 1.11 * 0.081);
  EXPECT_LT(error("select=sketch,bits=4,budget=64,residual=sketch,bits=4,tail=0"),
            1.11 * 0.081 * std::sqrt(2.0));
  EXPECT_LT(error("select=sketch,bits=8,budget=64,residual=sketch,bits=2,tail=0"), 1.11 * 0.40);
  // 38 of 41 pages unread carry most of this flat mass: without an estimate nothing is right.
  EXPECT_GT(error("select=sketch,budget=64"), 1);
}

TEST_F(SparseDecodeTest, OneHeavyTokenIsFoundByWhoLooksAtTokens) {
  auto layer = NewLayer(3);
  constexpr int64_t kNeedle = 17 * 32 + 5;
  layer->Attract(kNeedle, 25);
  for (int head = 0; head < kKvHeads; ++head) {
    std::fill_n(layer->value(kNeedle, head).begin(), kDim, 5.0f);
  }
  layer->Store(threads_);
  const std::vector<float> dense = Dense(*layer);
  // What lies outside the needle's page, whose values are less than 10 from the needle's.
  std::vector<double> rest;
  for (int head = 0; head < kHeads; ++head) {
    const std::vector<double> masses = layer->TrueMasses(head);
    rest.push_back(1 - masses[kNeedle / 32] / std::accumulate(masses.begin(), masses.end(), 0.0));
    ASSERT_LT(rest[head], 1e-3);
  }
  for (const std::string arm : {"select=sketch,bits=2,budget=32", "select=sketch,budget=32",
                                "select=sketch,bits=8,budget=32", "select=oracle,budget=32"}) {
    const Attended attended = Attend(arm, *layer);
    for (size_t i = 0; i < dense.size(); ++i) {
      EXPECT_NEAR(attended.out[i], dense[i], 10 * rest[i / kDim] + 1e-5) << arm;
    }
    EXPECT_GT(attended.account.mass_exact, 0.999 * kHeads) << arm;
  }
  for (const std::string arm : {"select=random,budget=32", "select=recent,budget=32"}) {
    EXPECT_LT(std::abs(Attend(arm, *layer).out[0]), 1) << arm;
    EXPECT_GT(dense[0], 4.9f);
  }
}

TEST_F(SparseDecodeTest, AHeavyPageIsFoundByEverySummary) {
  auto layer = NewLayer(4);
  for (int64_t t = 9 * 32; t < 10 * 32; ++t) {
    layer->Attract(t, 20);
    for (int head = 0; head < kKvHeads; ++head) {
      std::fill_n(layer->value(t, head).begin(), kDim, 5.0f);
    }
  }
  layer->Store(threads_);
  for (const std::string selector :
       {"sketch", "cascade,P=1", "vashista", "vashista,summary=meanstd", "vashista,summary=box",
        "meanstd", "quest", "oracle"}) {
    const Attended attended = Attend("select=" + selector + ",budget=32", *layer);
    for (float x : attended.out) EXPECT_NEAR(x, 5, 1e-3) << selector;
  }
  EXPECT_LT(std::abs(Attend("select=random,budget=32", *layer).out[0]), 1);
}

TEST_F(SparseDecodeTest, FlatMassWidensAndThenReadsEverything) {
  auto layer = NewLayer(5);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int head = 0; head < kKvHeads; ++head) {
      std::fill_n(layer->key(t, head).begin(), kDim, 0.0f);
    }
  }
  layer->Store(threads_);
  // The middle is pages 1 to 37 of 40 full ones: 37 − k unread pages are (37 − k)/40 of the mass.
  const AttentionAccount kept = Attend("select=sketch,budget=64,tol=0.9", *layer).account;
  EXPECT_EQ(kept.widened, 0);
  EXPECT_EQ(kept.tokens_read, kTokens - 35 * 32);
  const AttentionAccount widened = Attend("select=sketch,budget=64,tol=0.83", *layer).account;
  EXPECT_EQ(widened.widened, kKvHeads);
  EXPECT_EQ(widened.fallback_mass, 0);
  EXPECT_EQ(widened.tokens_read, kTokens - 33 * 32);
  const Attended all = Attend("select=sketch,budget=64,tol=0.5", *layer);
  EXPECT_EQ(all.account.widened, kKvHeads);
  EXPECT_EQ(all.account.fallback_mass, kKvHeads);
  EXPECT_EQ(all.account.tokens_read, kTokens);
  EXPECT_EQ(all.out, Dense(*layer));
}

TEST_F(SparseDecodeTest, ABudgetBeyondTheCascadesPagesFollowsTheSummary) {
  const auto layer = RandomLayer(9);
  EXPECT_EQ(Attend("select=cascade,P=1,budget=320", *layer).out,
            Attend("select=meanstd,budget=320", *layer).out);
}

// Also where the selector looks at no summary and cannot notice.
TEST_F(SparseDecodeTest, AKeyThatF16CannotHoldMakesItsHeadReadEverything) {
  auto layer = NewLayer(8);
  layer->key(20 * 32 + 3, 1)[10] = 70000;
  layer->Store(threads_);
  const std::vector<float> dense = Dense(*layer);
  constexpr size_t kHeadFloats = static_cast<size_t>(kHeads / kKvHeads) * kDim;
  for (const std::string arm :
       {"select=sketch,budget=64", "select=meanstd,budget=64,residual=cumulant",
        "select=recent,budget=64,residual=centroid", "select=random,budget=64,residual=cumulant"}) {
    const Attended attended = Attend(arm, *layer);
    EXPECT_EQ(attended.account.fallback_not_finite, 1) << arm;
    for (size_t i = 0; i < dense.size(); ++i) {
      ASSERT_TRUE(std::isfinite(attended.out[i])) << arm;
      if (i / kHeadFloats == 1) {
        ASSERT_EQ(attended.out[i], dense[i]) << arm;
      }
    }
  }
}

TEST_F(SparseDecodeTest, ANanMakesItsHeadReadEverythingAndReachesNoOther) {
  const auto good = RandomLayer(6);
  auto bad = NewLayer(7);
  bad->key(20 * 32 + 3, 1)[10] = kNan;
  bad->Store(threads_);
  for (const std::string arm :
       {"select=sketch,budget=64", "select=sketch,budget=64,residual=sketch",
        "select=vashista,budget=64,residual=centroid", "select=oracle,budget=64",
        "select=cascade,P=8,budget=64", "select=quest,budget=64",
        "select=recent,budget=64,residual=centroid"}) {
    const std::vector<Attended> both = Attend(threads_, arm, {good.get(), bad.get()});
    EXPECT_EQ(both[0].out, Attend(arm, *good).out) << arm;
    EXPECT_EQ(both[0].account.fallback_not_finite, 0) << arm;
    EXPECT_EQ(both[1].account.fallback_not_finite, 1) << arm;
    EXPECT_GE(both[1].account.tokens_read, kTokens / 2) << arm;
    for (int head = 0; head < kHeads; ++head) {
      const bool poisoned = head >= kHeads / kKvHeads;
      for (int c = 0; c < kDim; ++c) {
        EXPECT_EQ(std::isnan(both[1].out[head * kDim + c]), poisoned) << arm << ", head " << head;
      }
    }
    EXPECT_TRUE(std::isfinite(both[1].account.mass_exact + both[1].account.mass_dropped)) << arm;
  }
}

// A NaN value has a finite score: it reaches the output of who reads it, exactly or as an estimate.
TEST_F(SparseDecodeTest, ANanValueReachesItsChannel) {
  auto layer = NewLayer(8);
  layer->value(20 * 32 + 3, 0)[10] = kNan;
  layer->Store(threads_);
  const Attended attended = Attend("select=sketch,budget=64,residual=sketch,tail=0", *layer);
  for (int head = 0; head < kHeads; ++head) {
    for (int c = 0; c < kDim; ++c) {
      EXPECT_EQ(std::isnan(attended.out[head * kDim + c]), head < 3 && c == 10) << head << ' ' << c;
    }
  }
}

TEST_F(SparseDecodeTest, SharesThatUnderflowLeaveTheExactPart) {
  auto layer = NewLayer(9);
  layer->Attract(1, 400);  // a sink: every other page has mass 0 as a float share
  layer->Store(threads_);
  const std::vector<float> dense = Dense(*layer);
  for (const std::string arm : {"select=sketch,budget=64,residual=sketch,tail=0",
                                "select=sketch,budget=64,residual=sketch", "select=sketch"}) {
    const Attended attended = Attend(arm, *layer);
    for (size_t i = 0; i < dense.size(); ++i) EXPECT_FLOAT_EQ(attended.out[i], dense[i]) << arm;
    EXPECT_NEAR(attended.account.mass_exact, kHeads, 1e-6) << arm;
  }
}

TEST_F(SparseDecodeTest, TheAccountCountsTokensAndBytes) {
  const auto layer = RandomLayer(10, DType::kF16);
  const AttentionAccount account =
      Attend("select=sketch,budget=64,residual=sketch,bits=4,tail=0", *layer).account;
  // Page 0 holds the sinks; (1290 − 64)/32 = 38, so 74 tokens from page 38 on are kept as recent.
  EXPECT_EQ(account.tokens_read, 32 + 64 + 74);
  EXPECT_EQ(account.tokens_resident, kTokens);
  const auto scan_bytes = static_cast<int64_t>(SketchFormat(layer->layout(), 4).bytes);
  EXPECT_EQ(account.bytes_scanned, 40 * kKvHeads * scan_bytes);
  EXPECT_EQ(account.bytes_estimated, 35 * kKvHeads * scan_bytes);
  EXPECT_EQ(account.bytes_read, layer->layout().TokenBytes(account.tokens_read) +
                                    account.bytes_scanned + account.bytes_estimated);
  EXPECT_EQ(account.bytes_dense, layer->layout().TokenBytes(kTokens));
  EXPECT_EQ(account.layers_sparse, 1);
  EXPECT_EQ(account.layers_dense, 0);
  EXPECT_EQ(account.mass_heads, kHeads);
  EXPECT_NEAR(account.mass_exact + account.mass_estimated + account.mass_dropped, kHeads,
              1e-9 * kHeads);
  EXPECT_EQ(Attend("select=sketch,certify=none", *layer).account.mass_heads, 0);
  EXPECT_EQ(Attend("select=recent", *layer).account.mass_heads, 0);
}

// The oracle's shares are true up to float rounding: 1e-5 of a sum of 40 pages.
TEST_F(SparseDecodeTest, TheMassWrittenDownIsTheMass) {
  const auto layer = RandomLayer(11);
  std::vector<std::vector<double>> shares;  // [H][pages]
  for (int head = 0; head < kHeads; ++head) {
    shares.push_back(layer->TrueMasses(head));
    const double total = std::accumulate(shares[head].begin(), shares[head].end(), 0.0);
    for (double& share : shares[head]) share /= total;
  }
  double dropped = 0;
  double largest = 0;
  for (int kv_head = 0; kv_head < kKvHeads; ++kv_head) {
    std::vector<double> pooled(kPages);
    for (int head = 3 * kv_head; head < 3 * kv_head + 3; ++head) {
      // The rule pools shares of the full pages.
      for (int64_t page = 0; page < 40; ++page) {
        pooled[page] += shares[head][page] / (1 - shares[head][40]);
      }
    }
    std::vector<int64_t> order(37);
    std::iota(order.begin(), order.end(), 1);
    std::sort(order.begin(), order.end(),
              [&](int64_t a, int64_t b) { return pooled[a] > pooled[b]; });
    for (int head = 3 * kv_head; head < 3 * kv_head + 3; ++head) {
      double unread = 0;
      for (size_t i = 5; i < order.size(); ++i) unread += shares[head][order[i]];
      dropped += unread;
      largest = std::max(largest, unread);
    }
  }
  const AttentionAccount account = Attend("select=oracle,budget=160", *layer).account;
  EXPECT_NEAR(account.mass_dropped, dropped, 1e-5 * kHeads);
  EXPECT_NEAR(account.mass_dropped_max, largest, 1e-5);
  EXPECT_NEAR(account.mass_exact, kHeads - dropped, 1e-5 * kHeads);
  EXPECT_EQ(account.mass_estimated, 0);
}

TEST_F(SparseDecodeTest, NeitherTheBatchNorTheThreadsChangeABit) {
  const auto a = RandomLayer(12);
  const auto b = RandomLayer(13, DType::kF32, 400);
  const auto c = RandomLayer(14, DType::kF32, 2000);
  for (const std::string arm :
       {"select=sketch,budget=64,residual=sketch", "select=cascade,P=6,budget=64",
        "select=vashista,mass=0.5,residual=centroid", "select=random,budget=96",
        "select=oracle,budget=64,tol=0.2"}) {
    const std::vector<Attended> together = Attend(threads_, arm, {a.get(), b.get(), c.get()});
    for (const int n_threads : {1, 3}) {
      ThreadPool threads(n_threads);
      EXPECT_EQ(Attend(threads, arm, {a.get()})[0].out, together[0].out) << arm;
      EXPECT_EQ(Attend(threads, arm, {b.get()})[0].out, together[1].out) << arm;
      EXPECT_EQ(Attend(threads, arm, {c.get()})[0].out, together[2].out) << arm;
      EXPECT_EQ(Attend(threads, arm, {c.get()})[0].account.tokens_read,
                together[2].account.tokens_read);
    }
  }
}

TEST_F(SparseDecodeTest, AppliesWhereSomethingMayStayUnread) {
  const std::unique_ptr<DecodePolicy> policy = MakeDecodePolicy("select=sketch,dense_layers=2");
  EXPECT_FALSE(SparseDecode::Applies(*policy, 1, kTokens, 0, 32));
  EXPECT_TRUE(SparseDecode::Applies(*policy, 2, kTokens, 0, 32));
  // One page of sinks, one in between, 64 recent tokens.
  EXPECT_TRUE(SparseDecode::Applies(*policy, 2, 128, 0, 32));
  EXPECT_FALSE(SparseDecode::Applies(*policy, 2, 127, 0, 32));
  EXPECT_FALSE(SparseDecode::Applies(*policy, 2, 128, 65, 32));
}

}  // namespace
}  // namespace winnow
