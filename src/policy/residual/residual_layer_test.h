// For tests of estimators on pages: steps of one layer, the rows that pages hold, and feature maps
// for a model that is only a file.
#pragma once

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "model/model_hash.h"
#include "ops/kv_store.h"
#include "policy/residual/feature_file.h"
#include "policy/residual/feature_state.h"
#include "policy/residual/head_residual.h"
#include "testing/feature_maps.h"
#include "testing/paths.h"

namespace winnow::testing {

inline std::unique_ptr<ResidualEstimator> NewResidual(
    const std::string& name, const std::map<std::string, std::string>& values = {}) {
  Params params("residual=" + name);
  for (const auto& [key, value] : values) params.Set(key, value);
  auto residual = MakeResidual(name, /*key_bits=*/0, params);
  params.Finish();
  return residual;
}

// Feature maps in a file of their own, for a model of these shapes.
struct MappedModel {
  ModelIdentity identity;
  std::string maps_path;
  FeatureMaps maps;
};
inline MappedModel NewMappedModel(RandomFeatureMaps options) {
  static const std::string kFolder = TemporaryFolder();
  static int n_files = 0;
  const std::string model_path = fmt::format("{}/model{}", kFolder, ++n_files);
  std::ofstream(model_path) << n_files;
  options.model_hash = HashModelFile(model_path).Hex();
  const std::string maps_path = fmt::format("{}/maps{}.safetensors", kFolder, n_files);
  WriteFeatureMaps(maps_path, options);
  ModelConfig config;
  config.n_layers = options.n_layers;
  config.query_heads = options.query_heads;
  config.kv_heads = options.kv_heads;
  config.head_dim = options.head_dim;
  return {.identity = {config, model_path},
          .maps_path = maps_path,
          .maps = LoadFeatureMaps(maps_path, config, model_path)};
}

// The unread pages of one query, the same in every KV head, as a step's only layer.
struct LayerEstimate {
  std::vector<float> out;       // [H, D]
  std::vector<float> log_mass;  // [H]
  ResidualAccount account;
  int64_t dropped = 0;

  std::vector<float> Out(int head, int64_t dim) const {
    return {out.begin() + head * dim, out.begin() + (head + 1) * dim};
  }
};
inline LayerEstimate EstimateLayer(ThreadPool& threads, ResidualEstimator* residual,
                                   const LayerQuery& query, const DecodeAttentionParams& params,
                                   const std::vector<int32_t>& unread,
                                   const std::vector<int32_t>& read, int layer = 1) {
  const PageLayout& layout = *query.kv.layout;
  LayerEstimate estimate;
  estimate.out.assign(static_cast<size_t>(params.query_heads) * layout.head_dim, -1.0f);
  estimate.log_mass.assign(params.query_heads, -1.0f);
  residual->Begin(layout.kv_heads);
  for (int head = 0; head < layout.kv_heads; ++head) {
    residual->Plan(head, {.pages = unread, .read = read});
  }
  estimate.account.dropped = &estimate.dropped;
  residual->Estimate(
      {.pool = &threads, .layer = layer, .params = params, .queries = std::span(&query, 1)},
      {estimate.out.data(), estimate.log_mass.data()}, &estimate.account);
  estimate.account.dropped = nullptr;
  return estimate;
}

// Tokens of these pages, in order.
inline std::vector<int64_t> TokensOf(const std::vector<int32_t>& pages, int64_t slots) {
  std::vector<int64_t> tokens;
  for (int32_t page : pages) {
    for (int64_t t = 0; t < slots; ++t) tokens.push_back(page * slots + t);
  }
  return tokens;
}

// What the pages hold of one KV head.
inline TokenRows RowsOf(const PagedKv& kv, int kv_head) {
  TokenRows rows;
  for (int64_t t = 0; t < kv.n_tokens; ++t) rows.Add(kv, kv_head, t);
  return rows;
}

// The features' state of some tokens, computed one by one.
inline FeatureState StateOfTokens(const FeatureMaps& maps, int layer, const PagedKv& kv,
                                  int kv_head, const std::vector<int64_t>& tokens) {
  const TokenRows rows = RowsOf(kv, kv_head);
  FeatureState state(maps.shape().n_features, kv.layout->head_dim);
  FeatureMapScratch scratch;
  std::vector<double> log_phi(maps.shape().n_features);
  for (int64_t t : tokens) {
    LogFeatures(maps.Key(layer, kv_head), rows.Keys().Slice(t, t + 1).span(), scratch, log_phi);
    state.Add(log_phi, rows.Values().Slice(t, t + 1).span());
  }
  return state;
}

}  // namespace winnow::testing
