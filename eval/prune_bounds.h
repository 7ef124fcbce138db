// EntroPrefill's stability theorem (6.2) for one diagnosed removal: what the weights' norms and the
// attention that was lost bound, next to what was measured.
#pragma once

#include <vector>

#include "eval/block_norms.h"
#include "eval/prune_diagnosis.h"
#include "policy/prefill/stability.h"

namespace winnow {

// What theorem 6.2 comes to with these norms.
struct PruneBounds {
  struct Layer {
    // Of the attention half alone, as with f_l = 0: K_l and e_l are at least these.
    BlockConstants constants;           // with the paper's factor of the softmax
    double attention_factor_sharp = 0;  // with the sharp one
    double defect = 0;       // 2·‖O‖·√Σ(V_h·η_h)², V_h over the normalised domain
    double deletion = 0;     // the same without ‖O‖: bounds PrunedLayer::deletion
    double log10_delta = 0;  // of Δ_l with the sharp factor and f = 0; -inf: nothing moved
  };
  std::vector<Layer> layers;
  double log10_logit_bound = 0;  // Λ·Δ_L
  // A bound from the same norms that was completed with the MLPs' constants could only be larger:
  // if this one does not certify the first token (Corollary 6.3), that one does not.
  bool vacuous = false;
};
PruneBounds BoundPruning(const PruneDiagnosis& diagnosis, const ModelNorms& norms);

}  // namespace winnow
