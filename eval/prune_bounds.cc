#include "eval/prune_bounds.h"

#include <cmath>

#include "core/check.h"

namespace winnow {

PruneBounds BoundPruning(const PruneDiagnosis& diagnosis, const ModelNorms& norms) {
  PruneBounds bounds;
  std::vector<double> log_defects, log_factors;
  for (const PrunedLayer& layer : diagnosis.layers) {
    BlockNorms block = norms.layers.at(layer.layer - 1);
    WINNOW_CHECK(block.heads.size() == layer.heads.size());
    block.mlp = 0;
    std::vector<double> eta;
    for (const PrunedHead& head : layer.heads) eta.push_back(head.eta);
    PruneBounds::Layer& out = bounds.layers.emplace_back();
    out.constants = ComputeBlockConstants(block);
    out.attention_factor_sharp = ComputeBlockConstants(block, kSharpSoftmaxFactor).attention;
    out.defect = DeletionDefect(block, 1, eta);
    out.deletion = block.output > 0 ? out.defect / block.output : 0;
    log_defects.push_back(std::log(out.defect));
    log_factors.push_back(std::log(out.attention_factor_sharp));
  }
  const std::vector<double> deltas = PropagateDefects(log_defects, log_factors);
  for (size_t l = 0; l < bounds.layers.size(); ++l) {
    bounds.layers[l].log10_delta = deltas[l + 1] / std::log(10.0);
  }
  bounds.log10_logit_bound = deltas.back() / std::log(10.0) + std::log10(norms.readout);
  // Compared as logarithms: the bound may be beyond a double.
  bounds.vacuous = !(bounds.log10_logit_bound + std::log10(2) < std::log10(diagnosis.margin));
  return bounds;
}

}  // namespace winnow
