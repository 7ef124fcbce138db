// What calibration found of a model: which layers and heads of it look at what matters, and what
// removals may cost each of its heads. JSON beside the model, or built in.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policy/prefill/prune_params.h"

namespace winnow {

// What a profile has to fit.
struct PruneModel {
  std::string hash;  // of HashModelFile
  int n_layers = 0;
  int query_heads = 0;
  int kv_heads = 0;
  std::vector<int> global_layers;  // from 1, rising; layers with a window are never monitored
};

struct PruneProfileLayer {
  int layer = 0;                     // from 1, at most L − 1
  std::vector<double> head_weights;  // [H], times w_h of (4); 0: outside of the pool and of (12)
  std::vector<double> eps;           // [H]: what each row of a head may lose, in [0, 1)
  std::vector<double> eps_audit;     // [H]: what a head may lose on average
};

struct PruneProfile {
  std::string name;  // "early", "late", …; "uncalibrated" if it is nobody's finding
  std::string model_hash;
  int n_layers = 0;
  int query_heads = 0;
  int kv_heads = 0;
  double keep = 0.25;                     // kept share of the candidates' tokens
  double max_change = 0.5;                // θ
  int min_streak = 1;                     // v
  std::vector<PruneProfileLayer> layers;  // monitored, rising

  // Throws Error(kInput), naming both, unless the model is the one it was made for; `source` is how
  // the message names the profile.
  void CheckModel(const PruneModel& model, std::string_view source) const;
  // Of everything that has a say in what is removed.
  uint64_t Fingerprint() const;
};

// {"schema": "winnow.prune-profile/1", "name", "model": {"hash", "layers", "query_heads",
// "kv_heads"}, "keep", "theta", "v", "layers": [{"layer", "head_weights", "eps", "eps_audit"}]}. A
// number stands for H equal ones; head_weights may be missing (all 1). "decode" and "calibration",
// which others read, may be there. FromJson throws Error(kInput) for anything else, or a value out
// of range, naming `source`.
nlohmann::ordered_json ToJson(const PruneProfile& profile);
PruneProfile PruneProfileFromJson(const nlohmann::json& json, std::string_view source);

// Throws Error(kInput) for a file that cannot be read or is no profile.
PruneProfile LoadPruneProfile(const std::string& path);

// The profiles that the program brings along.
std::span<const PruneProfile> BuiltInPruneProfiles();

// Monitors the arm's layers, or all global ones but the last, with all heads alike and one
// tolerance. Throws Error(kUsage) for layers that the model cannot monitor.
PruneProfile UncalibratedProfile(const PruneParams& params, const PruneModel& model);

// The profile that an arm asks for: none (uncalibrated=1), one of `built_in` by its name, or a
// file; with profile empty the built-in "late" one of this model. Throws Error(kUsage) if there is
// none, which is why pruning is refused, and as the functions above.
PruneProfile FindPruneProfile(const PruneParams& params, const PruneModel& model,
                              std::span<const PruneProfile> built_in);

}  // namespace winnow
