#include "ops/page_centroids.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/every_target_test.h"
#include "ops/page_planes.h"
#include "ops/paged_layer_test.h"
#include "ops/reference.h"

namespace winnow {
namespace {

using ::winnow::testing::PagedLayer;

constexpr PlaneSet kCentroids = {Plane::kKeyMean, Plane::kValueMean};

struct State {
  std::vector<float> out;
  float log_mass = 0;
};

State Centroids(const PagedLayer& layer, int query_head, const std::vector<int32_t>& pages) {
  State state{std::vector<float>(layer.shape().dim)};
  const PagedKv kv = layer.View();
  std::vector<float> workspace(CentroidWorkspaceFloats(layer.layout(), std::ssize(pages)), 7.0f);
  PageCentroids({.kv = &kv,
                 .kv_head = query_head / layer.shape().group,
                 .pages = pages,
                 .q = layer.q(query_head).data(),
                 .scale = layer.scale(),
                 .out = state.out.data(),
                 .log_mass = &state.log_mass},
                workspace);
  return state;
}

// Attention over the stored means as if they were tokens, in double.
void ExpectAttentionOverMeans(const PagedLayer& layer, int query_head,
                              const std::vector<int32_t>& pages) {
  const int64_t dim = layer.shape().dim;
  const auto n = std::ssize(pages);
  const int kv_head = query_head / layer.shape().group;
  std::vector<double> keys, values;
  std::vector<float> mean(dim);
  double mass = 0;
  for (const int32_t page : pages) {
    LoadKeyStatistics(layer.View(), Plane::kKeyMean, 0, page, kv_head, mean);
    double score = 0;
    for (int64_t c = 0; c < dim; ++c) {
      score += static_cast<double>(layer.q(query_head)[c]) * mean[c];
    }
    mass += layer.layout().slots * std::exp(static_cast<double>(layer.scale()) * score);
    keys.insert(keys.end(), mean.begin(), mean.end());
    const auto* value =
        reinterpret_cast<const float*>(layer.View().PlaneOf(Plane::kValueMean, page, kv_head));
    values.insert(values.end(), value, value + dim);
  }
  const std::vector<double> q(layer.q(query_head).begin(), layer.q(query_head).end());
  std::vector<double> expected(dim);
  reference::Attention(q, {keys.data(), {n, dim}}, {values.data(), {n, dim}}, layer.scale(),
                       expected);
  const State state = Centroids(layer, query_head, pages);
  // Scores and values are about 1 and smaller; every sum is of at most D or as many pages' terms,
  // each rounded once: (D + pages) · 2^-24 is below 2e-5.
  EXPECT_NEAR(state.log_mass, std::log(mass), 2e-5);
  for (int64_t c = 0; c < dim; ++c) EXPECT_NEAR(state.out[c], expected[c], 2e-5) << c;
}

TEST(PageCentroids, AreAttentionOverTheMeans) {
  ThreadPool threads(2);
  for (const int dim : {16, 40, 64, 80, 128}) {
    SCOPED_TRACE(dim);
    PagedLayer layer({.kv_heads = 2, .group = 3, .dim = dim, .slots = 32, .n_tokens = 32 * 40 + 5},
                     kCentroids, DType::kF16, dim);
    layer.Store(threads);
    std::vector<int32_t> pages;
    for (int32_t page = 39; page >= 0; page -= page % 3 + 1) {
      pages.insert(pages.begin(), page);
      testing::OnEveryTarget([&] {
        for (const int head : {0, 2, 5}) ExpectAttentionOverMeans(layer, head, pages);
      });
    }
  }
}

TEST(PageCentroids, KeepNaN) {
  ThreadPool threads(2);
  for (const int32_t bad : {0, 20, 22}) {
    SCOPED_TRACE(bad);
    PagedLayer layer({.n_tokens = 32 * 23}, kCentroids, DType::kF32, 1);
    layer.key(bad * 32 + 5, 1)[3] = std::numeric_limits<float>::quiet_NaN();
    layer.Store(threads);
    std::vector<int32_t> pages(23);
    std::iota(pages.begin(), pages.end(), 0);
    testing::OnEveryTarget([&] {
      const State state = Centroids(layer, 3, pages);
      EXPECT_TRUE(std::isnan(state.log_mass));
      for (const float x : state.out) EXPECT_TRUE(std::isnan(x));
      EXPECT_FALSE(std::isnan(Centroids(layer, 0, pages).log_mass));
    });
  }
}

}  // namespace
}  // namespace winnow
