// One sample under several arms: the answers, what they read, and how far each arm is from dense
// along dense's own tokens.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "eval/fidelity.h"
#include "eval/task.h"

namespace winnow {

struct ArmRun {
  std::string arm;
  // The answer, decoded greedily; of a sample with a continuation: the run along it.
  RequestResult result;
  double seconds = 0;  // from its submission to its end
  double score = 0;    // of the answer, 0 if it failed; only samples with references have one
  // First token of the answer that is not dense's; none: the same tokens, or no answer.
  std::optional<int64_t> first_difference;
  // Along dense's answer, or the continuation; none if that run failed.
  std::optional<Fidelity> fidelity;
  std::string error;  // why a run failed; empty: none did
  // Of an arm that prunes: whether it dropped anything, and whether all of the sample's evidence is
  // still there (none: the sample names no evidence).
  std::optional<bool> pruned;
  std::optional<bool> evidence_kept;

  bool hit() const { return score >= 1; }
};

struct ArmRunHooks {
  std::function<bool()> should_stop;                       // polled between steps; may be empty
  std::function<void(std::string_view arm)> on_arm;        // before an arm runs; may be empty
  std::function<void(const ArmRun& run)> on_run;           // after an arm ran; may be empty
  std::function<void(const PrefillProgress&)> on_prefill;  // may be empty
};

struct ArmRunOptions {
  // Forget resident prefixes before each arm, so that each reads the whole prompt and times to the
  // first token compare. Otherwise arms share pages wherever their fingerprints allow it.
  bool fresh_prefill = false;
};

// Runs `sample` under each of `arms` in turn; arms[0] is the reference and must be "dense". Keeps
// the reference's logits [n, V] meanwhile. Nothing if it was stopped. Throws Error as
// Engine::Submit does, and if the reference fails; an arm that fails keeps its error.
std::optional<std::vector<ArmRun>> RunArms(Engine* engine, const EvalSample& sample,
                                           const std::vector<std::string>& arms,
                                           const ArmRunOptions& options, const ArmRunHooks& hooks);

// The dense side of a sample, which arms are held against.
struct DenseReference {
  std::vector<TokenId> tokens;
  LogitTrace logits;     // [n, V], from which each token was drawn
  RequestResult result;  // of the answer
};

// Dense's answer to `sample`, or its run along the continuation. Nothing if it was stopped. Throws
// Error as Engine::Submit does, and if the run fails.
std::optional<DenseReference> RunReference(Engine* engine, const EvalSample& sample,
                                           const ArmRunHooks& hooks);

// `arm` along the reference's tokens only: result, seconds and fidelity, or an error. Nothing if it
// was stopped.
std::optional<ArmRun> RunAlong(Engine* engine, const EvalSample& sample,
                               const DenseReference& reference, const std::string& arm,
                               const ArmRunHooks& hooks);

// `arms` as ParseArm accepts them, "dense" moved or added to the front. Throws Error(kUsage) for an
// unknown arm and for one given twice.
std::vector<std::string> ReferenceFirst(const std::vector<std::string>& arms);

}  // namespace winnow
