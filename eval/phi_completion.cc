#include "eval/phi_completion.h"

#include <algorithm>
#include <iterator>

#include "core/check.h"

namespace winnow {

PhiCompletion::PhiCompletion(const PhiView& view, TensorView<const double, 2> values,
                             std::span<const int64_t> middle)
    : view_(view), values_(values), middle_(middle), state_(StateOf(middle)) {}

PartialAttention PhiCompletion::Estimate(std::span<const int64_t> unread) const {
  if (view_.abstains()) return NoAttention(values_.shape[1]);
  std::vector<int64_t> read;
  std::set_difference(middle_.begin(), middle_.end(), unread.begin(), unread.end(),
                      std::back_inserter(read));
  FeatureState rest = state_;
  if (!read.empty()) rest.Subtract(StateOf(read), kFloat64Guards.feature);
  return EstimateResidual(state_, rest, view_.log_phi_query, 0, kFloat64Guards.mass).state;
}

FeatureState PhiCompletion::StateOf(std::span<const int64_t> rows) const {
  FeatureState state(std::ssize(view_.log_phi_query), values_.shape[1]);
  if (view_.abstains()) return state;
  std::vector<double> log_phi(view_.log_phi_query.size());
  for (const int64_t row : rows) {
    WINNOW_CHECK(row < view_.log_phi_keys.shape[0], "token {} has no features", row);
    std::copy_n(view_.log_phi_keys.row(row), log_phi.size(), log_phi.begin());
    state.Add(log_phi, {values_.row(row), static_cast<size_t>(values_.shape[1])});
  }
  return state;
}

PhiFeatures::PhiFeatures(const FeatureMaps* maps, int n_layers, int kv_heads)
    : maps_(maps), kv_heads_(kv_heads), keys_(static_cast<size_t>(n_layers) * kv_heads) {}

bool PhiFeatures::Abstains(int layer, int64_t n_tokens) const {
  return maps_ == nullptr || !maps_->HasLayer(layer) || n_tokens > maps_->trained_tokens();
}

TensorView<const float, 2> PhiFeatures::PromptKeys(ThreadPool* pool, int layer, int kv_head,
                                                   TensorView<const double, 2> keys) {
  constexpr int64_t kBlock = 64;
  const int64_t n = keys.shape[0];
  const int64_t features = maps_->shape().n_features;
  std::vector<float>& rows = keys_[layer * kv_heads_ + kv_head];
  if (rows.empty()) {
    rows.resize(n * features);
    std::vector<FeatureMapScratch> scratch(pool->size());
    pool->ForEach((n + kBlock - 1) / kBlock, [&](int64_t block, int thread) {
      const int64_t first = block * kBlock;
      const int64_t count = std::min(kBlock, n - first);
      LogFeaturesOfRows(maps_->Key(layer, kv_head), keys.Slice(first, first + count),
                        scratch[thread], {rows.data() + first * features, {count, features}});
    });
  }
  WINNOW_CHECK(std::ssize(rows) == n * features, "the prompt has changed");
  return {rows.data(), {n, features}};
}

std::vector<double> PhiFeatures::Query(int layer, int query_head,
                                       std::span<const float> query) const {
  FeatureMapScratch scratch;
  std::vector<double> log_phi(maps_->shape().n_features);
  const std::vector<double> x(query.begin(), query.end());
  LogFeatures(maps_->Query(layer, query_head), x, scratch, log_phi);
  return log_phi;
}

}  // namespace winnow
