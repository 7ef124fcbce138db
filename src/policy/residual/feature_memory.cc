#include "policy/residual/feature_memory.h"

#include <algorithm>
#include <utility>

namespace winnow {

int64_t FeatureMemory::bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_) {
    for (const Head& head : layer.heads) {
      bytes += head.middle.bytes() + std::ssize(head.log_phi) * static_cast<int64_t>(sizeof(float));
    }
  }
  return bytes;
}

int64_t FeatureMemory::Sync(ThreadPool& pool, const FeatureMaps& maps, int layer_index,
                            const PagedKv& kv, int64_t begin, int64_t end) {
  const PageLayout& layout = *kv.layout;
  const int64_t features = maps.shape().n_features;
  layers_.resize(std::max<size_t>(layers_.size(), layer_index + 1));
  Layer& layer = layers_[layer_index];
  if (layer.begin != begin || layer.heads.empty()) {
    layer = {.begin = begin, .heads = std::vector<Head>(layout.kv_heads)};
    for (Head& head : layer.heads) head.middle = FeatureState(features, layout.head_dim);
  }
  std::vector<PageStamp> stamps;
  for (int64_t page = begin; page < end; ++page) stamps.push_back(StampOf(kv, page));
  const auto changed =
      std::mismatch(layer.stamps.begin(), layer.stamps.end(), stamps.begin(), stamps.end());
  const int64_t known = changed.first - layer.stamps.begin();
  const bool extends = changed.first == layer.stamps.end();
  const int64_t n_new = std::ssize(stamps) - known;
  if (extends && n_new == 0) return 0;
  // Unknown until they are all there: what throws on the way leaves nothing half done.
  layer.stamps.clear();
  for (Head& head : layer.heads) {
    head.log_phi.resize(stamps.size() * layout.slots * features);
    if (!extends) head.middle = FeatureState(features, layout.head_dim);
  }
  std::vector<FeatureMapScratch> scratch(pool.size());
  pool.ForEach(n_new * layout.kv_heads, [&](int64_t task, int thread) {
    const int64_t page = known + task / layout.kv_heads;  // from `begin`
    const auto kv_head = static_cast<int>(task % layout.kv_heads);
    TokenRows rows;
    for (int64_t t = 0; t < layout.slots; ++t) {
      rows.Add(kv, kv_head, (begin + page) * layout.slots + t);
    }
    float* log_phi = layer.heads[kv_head].log_phi.data() + page * layout.slots * features;
    LogFeaturesOfRows(maps.Key(layer_index, kv_head), rows.Keys(), scratch[thread],
                      {log_phi, {layout.slots, features}});
  });
  pool.ForEach(layout.kv_heads, [&](int64_t kv_head, int /*thread*/) {
    Head& head = layer.heads[kv_head];
    for (int64_t page = begin + (extends ? known : 0); page < end; ++page) {
      AddPage(layer, head, kv, static_cast<int>(kv_head), page, &head.middle);
    }
  });
  layer.stamps = std::move(stamps);
  return n_new;
}

FeatureState FeatureMemory::StateOf(int layer_index, const PagedKv& kv, int kv_head,
                                    std::span<const int32_t> pages) const {
  const Layer& layer = layers_[layer_index];
  const Head& head = layer.heads[kv_head];
  FeatureState state(head.middle.n_features(), head.middle.value_dim());
  for (int32_t page : pages) AddPage(layer, head, kv, kv_head, page, &state);
  return state;
}

void FeatureMemory::AddPage(const Layer& layer, const Head& head, const PagedKv& kv, int kv_head,
                            int64_t page, FeatureState* state) {
  const int64_t slots = kv.layout->slots;
  const int64_t features = state->n_features();
  TokenRows rows;
  for (int64_t t = 0; t < slots; ++t) rows.Add(kv, kv_head, page * slots + t);
  std::vector<double> log_phi(features);
  for (int64_t t = 0; t < slots; ++t) {
    const float* stored = head.log_phi.data() + ((page - layer.begin) * slots + t) * features;
    std::copy_n(stored, features, log_phi.begin());
    state->Add(log_phi, rows.Values().Slice(t, t + 1).span());
  }
}

}  // namespace winnow
