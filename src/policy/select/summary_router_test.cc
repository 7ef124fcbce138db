// A search by super-pages against the scan of every page.
#include "policy/select/summary_router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "ops/paged_layer_test.h"
#include "policy/select/routing.h"

namespace winnow {
namespace {

using ::winnow::testing::PagedLayer;

constexpr PlaneSet kPlanes = {Plane::kKeyMean, Plane::kKeyDeviation, Plane::kKeyBox, Plane::kKeys4};

struct Scored {
  std::vector<float> max, sum;  // [H, pages]
  int64_t bytes = 0;
};

class SummaryRouterTest : public ::testing::Test {
 protected:
  // 70 pages are four super-pages and six pages.
  static std::unique_ptr<PagedLayer> NewLayer(int64_t n_tokens = 70 * 32 + 9) {
    return std::make_unique<PagedLayer>(testing::LayerShape{2, 3, 64, 32, n_tokens}, kPlanes,
                                        DType::kF32, 1);
  }
  template <class ScoreFn>
  Scored With(const PagedLayer& layer, ScoreFn score) {
    const int64_t n = layer.n_full();
    Scored scored{std::vector<float>(layer.query_heads() * n, -1.0f),
                  std::vector<float>(layer.query_heads() * n, -1.0f)};
    const LayerQuery query{layer.queries(), layer.View(), layer.SuperPages()};
    const PageMasses masses{
        .n_pages = n, .stride = n, .max = scored.max.data(), .sum = scored.sum.data()};
    score(LayerStep{.pool = &threads_,
                    .params = {.query_heads = layer.query_heads(), .scale = layer.scale()},
                    .queries = {&query, 1},
                    .masses = {&masses, 1}},
          &scored.bytes);
    return scored;
  }
  Scored Route(const PagedLayer& layer, SummaryScore score, int64_t n_super) {
    SummaryRouter router(score, n_super);
    return With(layer, [&](const LayerStep& step, int64_t* bytes) { router.Scan(step, bytes); });
  }

  ThreadPool threads_{2};
};

// The super-pages' scores, by the scan that scores pages.
std::vector<float> SuperScores(ThreadPool& threads, const PagedLayer& layer, SummaryScore score) {
  const PagedKv super = layer.SuperPages();
  const auto n = std::ssize(super.pages);
  std::vector<float> max(layer.query_heads() * n);
  std::vector<float> sum(max.size());
  const PageScanQuery query{
      .q = layer.queries(),
      .kv = super,
      .masses = {.n_pages = n, .stride = n, .max = max.data(), .sum = sum.data()}};
  PageScanWorkspace workspace;
  SummaryScan(threads, std::span(&query, 1),
              {.query_heads = layer.query_heads(), .scale = layer.scale()}, score, workspace,
              nullptr);
  return max;
}

TEST_F(SummaryRouterTest, OnlyPagesOfTheBestSuperPagesAreLookedAt) {
  const auto layer = NewLayer();
  layer->Store(threads_);
  const int64_t n = layer->n_full();
  ASSERT_EQ(std::ssize(layer->SuperPages().pages), 4);
  for (const SummaryScore score :
       {SummaryScore::kMean, SummaryScore::kMeanStd, SummaryScore::kBox}) {
    const Scored all = Route(*layer, score, 0);
    const std::vector<float> super = SuperScores(threads_, *layer, score);
    for (const int64_t n_super : {1, 2}) {
      const Scored routed = Route(*layer, score, n_super);
      const int64_t per_page = all.bytes / n;  // both heads
      EXPECT_EQ(routed.bytes, per_page * (4 + n_super * 16 + 6));
      EXPECT_EQ(routed.sum, all.sum);
      for (int kv_head = 0; kv_head < 2; ++kv_head) {
        std::vector<double> pooled(4);
        for (int r = 3 * kv_head; r < 3 * kv_head + 3; ++r) {
          double total = 0;
          for (int s = 0; s < 4; ++s) total += std::exp(super[r * 4 + s]);
          for (int s = 0; s < 4; ++s) pooled[s] += std::exp(super[r * 4 + s]) / total;
        }
        const std::vector<int64_t> best = TopIndices(pooled, n_super);
        for (int r = 3 * kv_head; r < 3 * kv_head + 3; ++r) {
          for (int64_t page = 0; page < n; ++page) {
            const int64_t s = page / kSuperPagePages;
            const bool looked_at = s == 4 || std::binary_search(best.begin(), best.end(), s);
            EXPECT_EQ(routed.max[r * n + page],
                      looked_at ? all.max[r * n + page] : super[r * 4 + s]);
          }
        }
      }
    }
    // Of four super-pages three or more are no saving.
    for (const int64_t n_super : {3, 100}) {
      EXPECT_EQ(Route(*layer, score, n_super).max, all.max);
      EXPECT_EQ(Route(*layer, score, n_super).bytes, all.bytes);
    }
  }
}

TEST_F(SummaryRouterTest, AHeavyPageIsFoundThroughItsSuperPage) {
  auto layer = NewLayer();
  for (int64_t t = 37 * 32; t < 38 * 32; ++t) layer->Attract(t, 30);
  layer->Store(threads_);
  for (const SummaryScore score :
       {SummaryScore::kMean, SummaryScore::kMeanStd, SummaryScore::kBox}) {
    const Scored routed = Route(*layer, score, 1);
    const int64_t n = layer->n_full();
    for (int head = 0; head < 6; ++head) {
      const auto begin = routed.max.begin() + head * n;
      EXPECT_EQ(std::max_element(begin, begin + n) - begin, 37);
    }
  }
}

TEST_F(SummaryRouterTest, WithANanEveryPageOfItsHeadIsLookedAt) {
  auto layer = NewLayer();
  layer->key(20 * 32 + 3, 1)[10] = std::numeric_limits<float>::quiet_NaN();
  layer->Store(threads_);
  const Scored all = Route(*layer, SummaryScore::kMeanStd, 0);
  const Scored routed = Route(*layer, SummaryScore::kMeanStd, 1);
  const int64_t n = layer->n_full();
  for (int64_t i = 3 * n; i < 6 * n; ++i) {
    EXPECT_EQ(std::isnan(routed.max[i]), i % n == 20);
    if (i % n != 20) {
      EXPECT_EQ(routed.max[i], all.max[i]);
    }
  }
  for (int64_t i = 0; i < 3 * n; ++i) EXPECT_TRUE(std::isfinite(routed.max[i]));
}

TEST_F(SummaryRouterTest, ACascadeSketchesTheBestThatTheRouterFinds) {
  auto layer = NewLayer(200 * 32);
  layer->Attract(77 * 32 + 9, 12);
  for (int64_t t = 78 * 32; t < 79 * 32; ++t) layer->Attract(t, 9);
  layer->Store(threads_);
  Params params("select=cascade");
  for (const auto& [key, value] : {std::pair{"P", "4"}, {"super", "1"}}) params.Set(key, value);
  const std::unique_ptr<Selector> cascade = MakeSelector("cascade", params);
  const std::unique_ptr<Selector> sketch = [] {
    Params none("select=sketch");
    return MakeSelector("sketch", none);
  }();
  const Scored routed =
      With(*layer, [&](const LayerStep& step, int64_t* bytes) { cascade->Score(step, bytes); });
  const Scored full =
      With(*layer, [&](const LayerStep& step, int64_t* bytes) { sketch->Score(step, bytes); });
  const int64_t n = layer->n_full();
  // What is left out ranks 60 below in log mass; no score of a page that is looked at is as low.
  constexpr float kLeftOut = -40;
  int64_t kept = 0;
  for (int64_t i = 0; i < 6 * n; ++i) {
    if (routed.max[i] < kLeftOut) continue;
    ++kept;
    EXPECT_EQ(routed.max[i], full.max[i]);
    EXPECT_EQ(routed.sum[i], full.sum[i]);
  }
  EXPECT_EQ(kept, 6 * 4);
  for (int head = 0; head < 6; ++head) EXPECT_GT(routed.max[head * n + 78], kLeftOut);
  EXPECT_LT(routed.bytes, full.bytes / 2);
}

}  // namespace
}  // namespace winnow
