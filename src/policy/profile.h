// A model's profile: what calibration found, that `auto` runs. JSON, schema winnow.profile/1
// (docs/calibration.md).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/hash.h"
#include "model/config.h"
#include "policy/completion_gates.h"

namespace winnow {

// The model that a profile is for.
struct ProfileModel {
  std::string name;  // for people
  std::string hash;  // HashModelFile, in hexadecimal
  int layers = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  bool operator==(const ProfileModel&) const = default;
};
ProfileModel DescribeModel(const ModelConfig& config, const Hash128& hash);

// The defaults lie above the noise of the default model, where any change of the attention's last
// bits costs a KL of 0.002 to 0.003 (docs/calibration.md, "Targets and noise").
struct FidelityTarget {
  double kl = 0.005;             // mean KL(dense || arm) along dense's own output, nats: at most
  double top1_agreement = 0.96;  // at least
  bool operator==(const FidelityTarget&) const = default;
};

// The agreement at so many positions that does not yet show that the target is missed: a share of a
// few hundred lies below its true value by chance, in one of twenty cases by more than 1.645
// standard errors.
double LeastAgreement(const FidelityTarget& target, int64_t positions);

// What an arm was found to do on some prompts, along dense's output. Means over the positions.
struct ProfileFigures {
  int64_t prompts = 0;
  int64_t positions = 0;
  double kl = 0;
  double top1_agreement = 1;
  double perplexity_ratio = 1;
  double bytes_ratio = 1;  // read by attention in a step, of what dense reads
  bool MeetsKl(const FidelityTarget& target) const { return kl <= target.kl; }
  bool MeetsAgreement(const FidelityTarget& target) const {
    return top1_agreement >= LeastAgreement(target, positions);
  }
  bool Meets(const FidelityTarget& target) const {
    return MeetsKl(target) && MeetsAgreement(target);
  }
  bool operator==(const ProfileFigures&) const = default;
};

// What a file holds: the model, one section for each phase (so far decode), and where it is from.
struct ModelProfile {
  ProfileModel model;
  // Section "decode".
  std::string arm = "dense";  // its number of dense layers included, without `completion_off`
  std::vector<CompletionGate> completion_off;
  FidelityTarget target;
  ProfileFigures calibration;   // on the prompts that chose the arm
  ProfileFigures test;          // on others
  bool search_complete = true;  // false: stopped early, so a cheaper arm may exist
  // Section "made_by".
  std::string version;  // of the program that made it
  std::string command;  // with which arguments
  bool operator==(const ModelProfile&) const = default;

  // The arm with its gates. Throws Error(kUsage) as ParseArm does.
  std::string FullArm() const;
  // The parts of the target ("kl", "top1_agreement") that were missed on either prompts.
  std::vector<std::string> Missed() const;
  // Why `auto` must not run the arm, or "": it was not tested, or missed a target.
  std::string Refusal() const;
};

nlohmann::ordered_json ToJson(const ModelProfile& profile);
// The file's text.
std::string FormatProfile(const ModelProfile& profile);

// Throws Error(kInput) that begins with `source` (a file's name) and names the key: not JSON,
// another schema, a key that is missing, unknown or of the wrong type, a value out of range, an arm
// that ParseArm refuses, a list of missed targets that the figures contradict.
ModelProfile ParseProfile(std::string_view text, const std::string& source);

// Throws Error(kInput) if the profile is of another model: its hash, or a dimension, differs.
void CheckProfile(const ModelProfile& profile, const ProfileModel& model,
                  const std::string& source);

// The built-in profile of the model with this hash, or null.
const ModelProfile* FindBuiltinProfile(const std::string& hash);

}  // namespace winnow
