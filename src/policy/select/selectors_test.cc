// Masses that selectors give to pages, against those of the keys in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "ops/paged_layer_test.h"
#include "ops/summary_scan.h"
#include "policy/select/selector.h"

namespace winnow {
namespace {

using ::winnow::testing::PagedLayer;

struct Scored {
  std::vector<float> max, sum;  // [H, pages]
  int64_t bytes = 0;
  double LogMass(size_t i) const { return max[i] + std::log(static_cast<double>(sum[i])); }
};

class Selectors : public ::testing::Test {
 protected:
  Selectors()
      : layer_({2, 3, 64, 32, 40 * 32 + 7},
               {Plane::kKeys2, Plane::kKeys4, Plane::kKeys8, Plane::kKeyMean, Plane::kKeyDeviation,
                Plane::kKeyBox},
               DType::kF32, 1) {}
  void SetUp() override { layer_.Store(threads_); }

  static std::unique_ptr<Selector> Make(
      const std::string& name,
      const std::vector<std::pair<std::string, std::string>>& values = {}) {
    Params params("select=" + name);
    for (const auto& [key, value] : values) params.Set(key, value);
    return MakeSelector(name, params);
  }

  Scored Score(Selector& selector, int layer = 0) {
    const int64_t n = layer_.n_full();
    Scored scored{std::vector<float>(layer_.query_heads() * n),
                  std::vector<float>(layer_.query_heads() * n)};
    const LayerQuery query{layer_.queries(), layer_.View()};
    const PageMasses masses{
        .n_pages = n, .stride = n, .max = scored.max.data(), .sum = scored.sum.data()};
    selector.Score({.pool = &threads_,
                    .layer = layer,
                    .params = {.query_heads = layer_.query_heads(), .scale = layer_.scale()},
                    .queries = {&query, 1},
                    .masses = {&masses, 1}},
                   &scored.bytes);
    return scored;
  }

  ThreadPool threads_{2};
  PagedLayer layer_;
};

// N(0, 1) queries and keys. The oracle: doubles, rounded to floats. A sketch of b bits: steps of
// 4.2/(2^b − 1), an error of deviation step/√12 in a key's channel and as much in a score; a page's
// mass averages some of it; with 2 bits e^error also lifts the mean by half its variance, 0.08.
// Five deviations of one score stand for all. The query's own rounding (2 and 4 bits) adds less.
TEST_F(Selectors, EstimatesOfMassAreNearIt) {
  const std::vector<std::pair<std::unique_ptr<Selector>, double>> cases = [] {
    std::vector<std::pair<std::unique_ptr<Selector>, double>> made;
    made.emplace_back(Make("oracle"), 1e-6);
    for (const int bits : {2, 4, 8}) {
      made.emplace_back(Make("sketch", {{"bits", std::to_string(bits)}}),
                        5 * 4.2 / ((1 << bits) - 1) / std::sqrt(12.0) + (bits == 2 ? 0.08 : 0));
    }
    return made;
  }();
  for (const auto& [selector, tolerance] : cases) {
    EXPECT_TRUE(selector->estimates_mass());
    const Scored scored = Score(*selector);
    for (int head = 0; head < layer_.query_heads(); ++head) {
      const std::vector<double> masses = layer_.TrueMasses(head);
      for (int64_t page = 0; page < layer_.n_full(); ++page) {
        const double expected = std::log(masses[page]);
        EXPECT_NEAR(scored.LogMass(head * layer_.n_full() + page), expected,
                    tolerance + 1e-6 * std::abs(expected));
      }
    }
    EXPECT_GT(scored.bytes, 0);
  }
}

TEST_F(Selectors, TheBoxBoundsEveryPageFromAbove) {
  const Scored scored = Score(*Make("quest"));
  EXPECT_FALSE(Make("quest")->estimates_mass());
  for (int head = 0; head < layer_.query_heads(); ++head) {
    const std::vector<double> masses = layer_.TrueMasses(head);
    for (int64_t page = 0; page < layer_.n_full(); ++page) {
      EXPECT_GE(scored.LogMass(head * layer_.n_full() + page), std::log(masses[page]));
    }
  }
}

TEST_F(Selectors, ACascadeHasTheSketchOfTheBestBySummary) {
  const int64_t n = layer_.n_full();
  const Scored sketch = Score(*Make("sketch"));
  Scored summary = Score(*Make("meanstd"));
  for (const int64_t n_best : {1, 5, 39, 40, 400}) {
    const Scored cascade = Score(*Make("cascade", {{"P", std::to_string(n_best)}}));
    for (int kv_head = 0; kv_head < 2; ++kv_head) {
      const int64_t first = static_cast<int64_t>(kv_head) * 3 * n;
      std::vector<float> shares(3 * n);
      std::vector<float> pooled(n);
      std::vector<float> log_totals(3);
      PageShares({.n_pages = n,
                  .stride = n,
                  .max = summary.max.data() + first,
                  .sum = summary.sum.data() + first},
                 3, shares.data(), pooled.data(), log_totals.data());
      std::vector<float> sorted = pooled;
      std::sort(sorted.rbegin(), sorted.rend());
      const float worst = sorted[std::min(n_best, n) - 1];
      for (int64_t i = first; i < first + 3 * n; ++i) {
        const bool kept = pooled[(i - first) % n] >= worst;
        if (kept) {
          EXPECT_EQ(cascade.sum[i], sketch.sum[i]) << n_best << ", " << i;
          EXPECT_EQ(cascade.max[i], sketch.max[i]);
          continue;
        }
        // Shifted by the same for all pages of a query head, and far below: e^-60 of what is kept.
        const int64_t row = i - (i - first) % n;
        double of_kept = 0;
        for (int64_t page = 0; page < n; ++page) {
          if (pooled[page] >= worst) {
            of_kept +=
                sketch.sum[row + page] * std::exp(static_cast<double>(sketch.max[row + page]));
          }
        }
        const float shift = cascade.max[i] - summary.max[i];
        EXPECT_EQ(cascade.sum[i], summary.sum[i]);
        // Sums of numbers near 60, each rounded: 4 · 2^-18.
        EXPECT_NEAR(shift, std::log(of_kept) - log_totals[(row - first) / n] - 60, 2e-5);
      }
    }
  }
}

TEST_F(Selectors, RankingsAreTheSameInEveryHeadAndSeeded) {
  const int64_t n = layer_.n_full();
  const Scored recent = Score(*Make("recent"));
  for (int64_t page = 1; page < n; ++page) EXPECT_GT(recent.sum[page], recent.sum[page - 1]);
  const Scored random = Score(*Make("random", {{"seed", "7"}}));
  for (size_t i = 0; i < random.sum.size(); ++i) EXPECT_EQ(random.sum[i], random.sum[i % n]);
  EXPECT_EQ(random.sum, Score(*Make("random", {{"seed", "7"}})).sum);
  EXPECT_NE(random.sum, Score(*Make("random", {{"seed", "8"}})).sum);
  EXPECT_NE(random.sum, Score(*Make("random", {{"seed", "7"}}), 1).sum);
  EXPECT_GT(*std::min_element(random.sum.begin(), random.sum.end()), 0);
  EXPECT_EQ(random.bytes, 0);
}

TEST_F(Selectors, EachIsMadeByItsName) {
  for (const std::string& name : SelectorNames()) EXPECT_NE(Make(name), nullptr) << name;
  EXPECT_THROW(Make("sketc"), Error);
  EXPECT_THROW(Make("sketch", {{"bits", "16"}}), Error);
  EXPECT_THROW(Make("cascade", {{"P", "0"}}), Error);
  EXPECT_THROW(Make("cascade", {{"summary", "median"}}), Error);
  EXPECT_THROW(Make("random", {{"seed", "-1"}}), Error);
}

}  // namespace
}  // namespace winnow
