#include "eval/prune_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace winnow {
namespace {

using nlohmann::ordered_json;

constexpr const char* kMissing =
    "the MLPs are gated, and a bound of their Jacobian over the normalised domain (A.2) is not "
    "implemented";

// nlohmann writes what is not finite as null, which is what docs/json.md promises.
ordered_json HeadJson(const PrunedHead& head, const HeadNorms& norms, double a, double b) {
  return {{"eta", head.eta},
          {"density_ratio", head.density_ratio},
          {"gamma", head.gamma},
          {"sigma", head.sigma},
          {"transferred", head.transferred},
          {"query_norm", norms.query},
          {"key_norm", norms.key},
          {"value_norm", norms.value},
          {"query_bound", norms.query_bound},
          {"key_bound", norms.key_bound},
          {"value_bound", norms.value_bound},
          {"value_observed", head.value_observed},
          {"a", a},
          {"b", b}};
}

ordered_json LayerJson(const PrunedLayer& layer, const PruneBounds::Layer& bounds,
                       const BlockNorms& norms, double output_low) {
  ordered_json heads = ordered_json::array();
  for (size_t h = 0; h < layer.heads.size(); ++h) {
    heads.push_back(
        HeadJson(layer.heads[h], norms.heads[h], bounds.constants.a[h], bounds.constants.b[h]));
  }
  ordered_json json = {{"layer", layer.layer},
                       {"window", nullptr},
                       {"normaliser_lipschitz", norms.attention_lipschitz},
                       {"mlp_normaliser_lipschitz", norms.mlp_lipschitz},
                       {"output_norm", {output_low, norms.output}},
                       {"mlp_lipschitz", nullptr},
                       {"block_constant", nullptr},
                       {"attention_constant", bounds.constants.attention},
                       {"attention_constant_sharp", bounds.attention_factor_sharp},
                       {"deletion", layer.deletion},
                       {"deletion_bound_observed", layer.deletion_bound},
                       {"deletion_bound", bounds.deletion},
                       {"defect", layer.defect},
                       {"defect_bound", nullptr},
                       {"defect_floor", bounds.defect},
                       {"delta", layer.delta},
                       {"log10_delta_bound", nullptr},
                       {"log10_delta_floor", bounds.log10_delta},
                       {"state_norm", layer.state_norm},
                       {"heads", std::move(heads)}};
  if (layer.window > 0) json["window"] = layer.window;
  return json;
}

double LargestOf(const PrunedLayer& layer, double PrunedHead::*figure) {
  double largest = 0;
  for (const PrunedHead& head : layer.heads) largest = std::max(largest, head.*figure);
  return largest;
}

std::string Cell(double value, int width) {
  return std::isfinite(value) ? fmt::format("{:>{}.3g}", value, width)
                              : fmt::format("{:>{}}", "-", width);
}

std::string LayerTable(const PruneDiagnosis& diagnosis, const PruneBounds& bounds) {
  std::string table =
      fmt::format("{:<6}{:>8}{:>9}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>12}\n", "layer", "lost",
                  "bounded", "ratio", "deletion", "bound", "defect", "delta", "state", "floor 10^");
  for (size_t i = 0; i < diagnosis.layers.size(); ++i) {
    const PrunedLayer& layer = diagnosis.layers[i];
    table += fmt::format("{:<6}", layer.layer) + Cell(LargestOf(layer, &PrunedHead::eta), 8) +
             Cell(LargestOf(layer, &PrunedHead::transferred), 9) +
             Cell(LargestOf(layer, &PrunedHead::density_ratio), 10) + Cell(layer.deletion, 10) +
             Cell(layer.deletion_bound, 10) + Cell(layer.defect, 10) + Cell(layer.delta, 10) +
             Cell(layer.state_norm, 10) + Cell(bounds.layers[i].log10_delta, 12) + "\n";
  }
  return table;
}

std::string RemovedChunks(const PruneDiagnosis& diagnosis) {
  std::string list;
  for (size_t i = 0; i < diagnosis.chunks.size();) {
    size_t end = i;
    while (end < diagnosis.chunks.size() && diagnosis.chunks[end].removed) ++end;
    if (end == i) {
      ++i;
      continue;
    }
    list += list.empty() ? "" : ",";
    list += end == i + 1 ? fmt::format("{}", end) : fmt::format("{}-{}", i + 1, end);
    i = end;
  }
  return list.empty() ? "none" : list;
}

std::string Conclusion(const PruneDiagnosis& diagnosis, const PruneBounds& bounds) {
  std::string text = fmt::format("Theorem 6.2's bound cannot be completed: {}. ", kMissing);
  if (bounds.vacuous) {
    text += fmt::format(
        "With constant 0 in their place, the least it could be with these norms, it allows logits "
        "to move by "
        "10^{:.1f}; the first token would be certain below {:.3g}, half its margin. The bound is "
        "vacuous.\n",
        bounds.log10_logit_bound, diagnosis.margin / 2);
  } else {
    text +=
        "With constant 0 in their place it would certify the first token; what the MLPs add is not "
        "known, so nothing is certified.\n";
  }
  text += fmt::format(
      "Measured: logits move by {:.3g} at most, the margin is {:.3g}; the first token is {}. That "
      "is this prompt's, and no promise for another.\n",
      diagnosis.logit_difference, diagnosis.margin,
      diagnosis.full_token == diagnosis.pruned_token ? "the same" : "another one");
  return text;
}

}  // namespace

ordered_json ToJson(const PruneDiagnosis& diagnosis, const PruneBounds& bounds,
                    const ModelNorms& norms, const PruneDiagnosisOptions& options) {
  ordered_json chunks = ordered_json::array();
  for (const PrunedChunk& chunk : diagnosis.chunks) {
    chunks.push_back({{"document", chunk.document},
                      {"begin", chunk.begin},
                      {"end", chunk.end},
                      {"mass", chunk.mass},
                      {"page_gap", chunk.page_gap},
                      {"candidate", chunk.candidate},
                      {"removed", chunk.removed}});
  }
  ordered_json layers = ordered_json::array();
  for (size_t i = 0; i < diagnosis.layers.size(); ++i) {
    const int index = diagnosis.layers[i].layer - 1;
    layers.push_back(LayerJson(diagnosis.layers[i], bounds.layers[i], norms.layers[index],
                               norms.output_low[index]));
  }
  return {{"layer", diagnosis.layer},
          {"prompt_tokens", diagnosis.n_tokens},
          {"document_tokens", diagnosis.n_document_tokens},
          {"removed_tokens", diagnosis.n_removed},
          {"observers", diagnosis.n_observers},
          {"document_mass", diagnosis.document_mass},
          {"removed_mass", diagnosis.removed_mass},
          {"row_collision", diagnosis.row_collision},
          {"mean_collision", diagnosis.mean_collision},
          {"page_tokens", options.page_tokens},
          {"logit_difference", diagnosis.logit_difference},
          {"margin", diagnosis.margin},
          {"token", diagnosis.full_token},
          {"token_pruned", diagnosis.pruned_token},
          {"readout_lipschitz", norms.readout},
          {"norms_failure", norms.failure},
          {"bound_missing", kMissing},
          {"log10_logit_floor", bounds.log10_logit_bound},
          {"vacuous", bounds.vacuous},
          {"certified", false},
          {"chunks", std::move(chunks)},
          {"layers", std::move(layers)}};
}

std::string PruneTable(const PruneDiagnosis& diagnosis, const PruneBounds& bounds,
                       const ModelNorms& norms) {
  std::string text = fmt::format(
      "{} prompt tokens, {} of documents in {} chunks. Above layer {}, {} of them are removed "
      "(chunks {}).\n"
      "The last {} tokens pay {:.3g} of their attention in layer {} to documents, {:.3g} to what "
      "is removed.\n\n",
      diagnosis.n_tokens, diagnosis.n_document_tokens, diagnosis.chunks.size(), diagnosis.layer,
      diagnosis.n_removed, RemovedChunks(diagnosis), diagnosis.n_observers, diagnosis.document_mass,
      diagnosis.layer, diagnosis.removed_mass);
  text += LayerTable(diagnosis, bounds);
  text +=
      "\nlost: the most that a retained token paid to what is removed; bounded: the same from "
      "layer "
      "l*'s observers,\nby support transfer (27); ratio: the largest density ratio (26). deletion: "
      "what that alone does to attention's\noutput, and its bound (Lemma 4.2, this prompt's "
      "values). defect, delta: of one layer's states, of the states so far;\nstate: their norm. "
      "floor: the least that the bound of delta (24) could be, without the MLPs.\n\n";
  text += Conclusion(diagnosis, bounds);
  if (norms.failure > 0) {
    text += fmt::format(
        "The weights' norms come from power iteration: one of them is too small with probability "
        "{:.1g} at most.\n",
        norms.failure);
  }
  return text;
}

}  // namespace winnow
