// Certificates against the true share of what was left unread, through the engine's own kernels.
#include "policy/certify/certifier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

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

// Of one query head.
struct Interval {
  double lo = 0;
  double hi = 0;
};

class CertifierTest : public ::testing::Test {
 protected:
  // The certifier's intervals of every query head for pages `unread`, after DecodeAttention read
  // the others; masses as the arm's selector scans them.
  std::vector<Interval> Certify(const std::string& arm, const PagedLayer& layer,
                                const std::vector<int32_t>& unread, StatementKind kind) {
    const std::unique_ptr<DecodePolicy> policy = MakeDecodePolicy(arm);
    const DecodeAttentionParams params{.query_heads = kHeads, .scale = layer.scale()};
    const LayerQuery query{layer.queries(), layer.View()};
    std::vector<float> max(kHeads * layer.n_full());
    std::vector<float> sum(max.size());
    const PageMasses masses{
        .n_pages = layer.n_full(), .stride = layer.n_full(), .max = max.data(), .sum = sum.data()};
    const LayerStep step{.pool = &threads_,
                         .layer = 3,
                         .params = params,
                         .queries = std::span(&query, 1),
                         .masses = std::span(&masses, 1)};
    int64_t bytes = 0;
    policy->selector->Score(step, &bytes);

    std::vector<PageId> ids;
    for (int32_t page = 0; page < std::ssize(query.kv.pages); ++page) {
      if (std::find(unread.begin(), unread.end(), page) == unread.end()) {
        ids.push_back(query.kv.pages[page]);
      }
    }
    PagedKv read = query.kv;
    read.pages = ids;
    read.n_tokens = query.kv.n_tokens - std::ssize(unread) * kSlots;
    std::vector<float> out(static_cast<size_t>(kHeads) * kDim);
    std::vector<float> log_mass(kHeads);
    const DecodeQuery decode{.q = layer.queries(),
                             .kv = read,
                             .end = read.n_tokens,
                             .out = out.data(),
                             .log_mass = log_mass.data()};
    DecodeWorkspace workspace;
    DecodeAttention(threads_, std::span(&decode, 1), params, workspace, nullptr);

    std::vector<ReadHead> heads(kKvHeads);
    for (int head = 0; head < kKvHeads; ++head) {
      heads[head] = {.kv_head = head,
                     .unread = unread,
                     .tokens_read = read.n_tokens,
                     .log_mass = log_mass.data() + head * kGroup};
    }
    std::vector<ShareInterval> shares(kHeads);
    policy->certifier->Certify(step, heads, shares, &bytes);
    std::vector<Interval> intervals;
    for (const ShareInterval& share : shares) {
      EXPECT_EQ(share.statement.kind, kind) << arm;
      EXPECT_EQ(share.statement.standing == Standing::kVacuous, share.hi - share.lo >= 0.5) << arm;
      intervals.push_back({share.lo, share.hi});
    }
    return intervals;
  }

  ThreadPool threads_{1};  // thousands of calls, each too small to share
};

// In double: the share of `unread` pages of a query head. Its own rounding, a few hundred sums, is
// far below that of the engine, which the intervals contain.
double TrueShare(const PagedLayer& layer, const std::vector<int32_t>& unread, int head) {
  const PagedLayer::Rows rows = layer.Stored(head);
  std::vector<long double> scores(layer.shape().n_tokens);
  for (int64_t t = 0; t < layer.shape().n_tokens; ++t) {
    for (int c = 0; c < kDim; ++c) {
      scores[t] +=
          static_cast<long double>(layer.scale()) * layer.q(head)[c] * rows.keys[t * kDim + c];
    }
  }
  const long double top = *std::max_element(scores.begin(), scores.end());
  long double total = 0;
  long double of_unread = 0;
  for (int64_t t = 0; t < layer.shape().n_tokens; ++t) {
    const long double mass = std::exp(scores[t] - top);
    total += mass;
    if (std::binary_search(unread.begin(), unread.end(), static_cast<int32_t>(t / kSlots))) {
      of_unread += mass;
    }
  }
  return static_cast<double>(of_unread / total);
}

std::vector<double> TrueShares(const PagedLayer& layer, const std::vector<int32_t>& unread) {
  std::vector<double> shares(kHeads);
  for (int head = 0; head < kHeads; ++head) shares[head] = TrueShare(layer, unread, head);
  return shares;
}

// Pages as models have them and as they do not: normal, an outlier, equal keys, huge norms, far
// from the origin with a small spread, zeros, one channel that varies, two clusters, a small
// spread.
void FillPages(PagedLayer& layer, Rng& rng, int first_kind) {
  for (int64_t page = 0; page * kSlots < layer.shape().n_tokens; ++page) {
    const int kind = static_cast<int>((page + first_kind) % 9);
    for (int head = 0; head < kKvHeads; ++head) {
      std::vector<float> centre(kDim);
      for (float& x : centre) x = static_cast<float>(rng.Normal()) * (kind == 4 ? 100 : 1);
      for (int64_t t = page * kSlots; t < std::min((page + 1) * kSlots, layer.shape().n_tokens);
           ++t) {
        const float sign = rng.Below(2) == 0 ? 1.0f : -1.0f;
        const std::span<float> key = layer.key(t, head);
        for (int c = 0; c < kDim; ++c) {
          const auto noise = static_cast<float>(rng.Normal());
          key[c] = kind == 1 && t % kSlots == 5 ? 30 * noise
                   : kind == 2                  ? centre[c]
                   : kind == 3                  ? 3000 * noise
                   : kind == 4                  ? centre[c] + 0.01f * noise
                   : kind == 5                  ? 0
                   : kind == 6                  ? centre[c] + (c == 0 ? 3 * noise : 0)
                   : kind == 7                  ? sign * centre[c] + 0.01f * noise
                   : kind == 8                  ? centre[c] + 0.02f * noise
                                                : noise;
        }
      }
    }
  }
}

TEST_F(CertifierTest, DeterministicIntervalsContainTheTruthOfTenThousandPages) {
  const std::vector<std::string> arms = {
      "certify=deterministic", "certify=sketch", "certify=sketch,bits=4",
      "select=sketch,bits=2,certify=sketch,bits=2", "select=recent,certify=sketch,bits=2"};
  Rng rng(1);
  int64_t n_pages = 0;
  int informative = 0;
  for (int round = 0; round < 60; ++round) {
    const DType dtype = round % 3 == 0 ? DType::kF16 : round % 3 == 1 ? DType::kF32 : DType::kQ8_0;
    // The last page is full, short, or one token.
    auto layer = NewCertifiedLayer(round,
                                   29 * kSlots + (round % 4 == 0   ? 0
                                                  : round % 4 == 1 ? 1
                                                                   : 17),
                                   dtype);
    FillPages(*layer, rng, round);
    layer->Store(threads_);
    std::vector<int32_t> unread;
    for (int32_t page = 0; page < 29; ++page) {
      if (rng.Below(4) != 0 && page != round % 29) unread.push_back(page);
    }
    if (round % 7 == 3) unread = {static_cast<int32_t>(round % 29)};
    const std::vector<double> truth = TrueShares(*layer, unread);
    for (const std::string& arm : arms) {
      const std::vector<Interval> intervals =
          Certify(arm, *layer, unread, StatementKind::kDeterministic);
      for (int head = 0; head < kHeads; ++head) {
        ASSERT_LE(intervals[head].lo, truth[head]) << arm << ", round " << round;
        ASSERT_GE(intervals[head].hi, truth[head]) << arm << ", round " << round;
        informative += intervals[head].hi - intervals[head].lo < 0.5 ? 1 : 0;
      }
    }
    n_pages += std::ssize(unread) * kHeads;
  }
  EXPECT_GT(n_pages * std::ssize(arms), 10000);
  EXPECT_GT(informative, 100);
}

// Keys near their page's centre, as summaries need them.
TEST_F(CertifierTest, SummariesSayMuchWherePagesAreFlat) {
  auto layer = NewCertifiedLayer(2, 30 * kSlots);
  Rng rng(3);
  for (int64_t page = 0; page < 30; ++page) {
    for (int head = 0; head < kKvHeads; ++head) {
      std::vector<float> centre(kDim);
      for (float& x : centre) x = static_cast<float>(rng.Normal());
      for (int64_t t = page * kSlots; t < (page + 1) * kSlots; ++t) {
        for (int c = 0; c < kDim; ++c) {
          layer->key(t, head)[c] = centre[c] + 0.003f * static_cast<float>(rng.Normal());
        }
      }
    }
  }
  layer->Store(threads_);
  const std::vector<int32_t> unread = {3, 4, 5, 9, 20};
  for (const Interval& interval :
       Certify("certify=deterministic", *layer, unread, StatementKind::kDeterministic)) {
    EXPECT_LT(interval.hi - interval.lo, 0.01);
    EXPECT_GT(interval.lo, 0);
  }
}

// P(fewer than 1900 of 2000 cover | each does with 0.95) is a half, but these bounds are loose, and
// the test is of the promise: at least 1 − δ.
TEST_F(CertifierTest, TheSampledBoundCoversAsOftenAsItSays) {
  auto layer = NewCertifiedLayer(4, 12 * kSlots + 9, DType::kF16);
  // Ranges of logits that leave the sample something to say.
  for (int64_t t = 0; t < layer->shape().n_tokens; ++t) {
    for (int head = 0; head < kKvHeads; ++head) {
      for (float& x : layer->key(t, head)) x *= 0.15f;
    }
  }
  layer->Store(threads_);
  std::vector<int32_t> unread(8);
  std::iota(unread.begin(), unread.end(), 2);
  const std::vector<double> truth = TrueShares(*layer, unread);
  const std::vector<Interval> certain =
      Certify("certify=deterministic", *layer, unread, StatementKind::kDeterministic);
  constexpr int kTrials = 2000;
  int covered = 0;
  double width = 0;
  for (int seed = 0; seed < kTrials; ++seed) {
    const std::string arm =
        "select=recent,certify=sample,n=400,delta=0.05,seed=" + std::to_string(seed);
    const std::vector<Interval> intervals =
        Certify(arm, *layer, unread, StatementKind::kStatistical);
    // A KV head's intervals hold together.
    bool all = true;
    for (int head = 0; head < kGroup; ++head) {
      all = all && intervals[head].lo <= truth[head] && truth[head] <= intervals[head].hi;
      width += (intervals[head].hi - intervals[head].lo) / (kGroup * kTrials);
    }
    covered += all ? 1 : 0;
  }
  EXPECT_GE(covered, 0.95 * kTrials);
  EXPECT_LT(width, 0.8 * (certain[0].hi - certain[0].lo));
}

TEST_F(CertifierTest, ASampleOfNothingSaysWhatSummariesSay) {
  const auto layer = NewCertifiedLayer(5, 20 * kSlots);
  layer->Store(threads_);
  const std::vector<int32_t> unread = {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};
  const std::vector<Interval> certain =
      Certify("certify=deterministic", *layer, unread, StatementKind::kDeterministic);
  for (const std::string n : {"0", "1"}) {
    const std::vector<Interval> intervals =
        Certify("certify=sample,n=" + n, *layer, unread, StatementKind::kDeterministic);
    for (int head = 0; head < kHeads; ++head) {
      EXPECT_NEAR(intervals[head].lo, certain[head].lo, 1e-12);
      EXPECT_NEAR(intervals[head].hi, certain[head].hi, 1e-12);
    }
  }
}

}  // namespace
}  // namespace winnow
