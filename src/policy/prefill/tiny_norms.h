// The exact constants of the tiny transformer of ops/reference_prefill.h, for fixtures and tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "ops/reference_prefill.h"
#include "policy/prefill/stability.h"

namespace winnow {

// Of block `l` (from 0). Its MLP has two matrices and an activation of slope at most 1, so f_l is
// ‖W₂‖·‖W₁‖ (A.2).
inline BlockNorms TinyBlockNorms(const reference::TinyModel& model, int64_t l) {
  const reference::TinyBlock& block = model.blocks.at(l);
  const bool rms = model.norm == reference::Normaliser::kRms;
  const auto bounds = [&](std::span<const double> gamma, std::span<const double> beta) {
    return ComputeNormaliserBounds(gamma, rms ? std::span<const double>() : beta, model.epsilon);
  };
  const auto length = [](std::span<const double> x) {
    double squares = 0;
    for (double value : x) squares += value * value;
    return std::sqrt(squares);
  };
  const NormaliserBounds first = bounds(block.gamma1, block.beta1);
  const int64_t dim = model.head_dim;
  const auto head = [&](std::span<const double> w, std::span<const double> b, int64_t i,
                        double& norm, double& bound) {
    norm = SpectralNorm({w.data() + i * dim * model.hidden, {dim, model.hidden}});
    bound = norm * first.output + length(b.subspan(i * dim, dim));
  };
  BlockNorms norms;
  norms.attention_lipschitz = first.lipschitz;
  norms.mlp_lipschitz = bounds(block.gamma2, block.beta2).lipschitz;
  norms.mlp = SpectralNorm({block.w2.data(), {model.hidden, model.feed_forward}}) *
              SpectralNorm({block.w1.data(), {model.feed_forward, model.hidden}});
  norms.output = SpectralNorm({block.output.data(), {model.hidden, model.query_heads * dim}});
  norms.logit_scale = 1 / std::sqrt(static_cast<double>(dim));
  for (int64_t h = 0; h < model.query_heads; ++h) {
    const int64_t group = h / (model.query_heads / model.kv_heads);
    HeadNorms& of = norms.heads.emplace_back();
    head(block.wq, block.bq, h, of.query, of.query_bound);
    head(block.wk, block.bk, group, of.key, of.key_bound);
    head(block.wv, block.bv, group, of.value, of.value_bound);
  }
  return norms;
}

}  // namespace winnow
