// What the observers of a prompt look at in every layer, from one dense prefill: enough to try
// prefill pruning on it in any way.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "eval/task.h"
#include "policy/prefill/candidate.h"
#include "policy/prefill/prune_problem.h"

namespace winnow {

struct ObservedPrompt {
  struct Layer {
    int number = 0;                     // from 1
    std::vector<float> mean_attention;  // [H, T]
    std::vector<double> chunk_mass;     // [H · U, k]
  };
  std::string task;
  PruneProblem problem;
  std::vector<int32_t> evidence;  // candidate chunks that hold the answer
  std::vector<Layer> layers;

  LayerObservation Observation(const Layer& layer) const;
  // Whether no chunk of the evidence is among the `removed`.
  bool Keeps(std::span<const int32_t> removed) const;
  // Likewise of a proposal; an invalid one does not keep it.
  bool Keeps(const PruneCandidate& candidate) const {
    return !candidate.invalid && Keeps(candidate.scan.removed);
  }
};

struct ObserveHooks {
  std::function<bool()> should_stop;          // polled between steps; may be empty
  std::function<void(int64_t done)> on_done;  // prompts so far; may be empty
};

// One dense prefill of each sample, to the end of `last_layer`. Samples must name evidence, and
// leave out none of it from the candidates. Nothing if it was stopped. Throws as Engine::Submit,
// and Error(kInput) for a prompt that fails or has no evidence to look for.
std::optional<std::vector<ObservedPrompt>> ObservePrompts(Engine* engine,
                                                          const std::vector<EvalSample>& samples,
                                                          int last_layer,
                                                          const ObserveHooks& hooks);

// What a layer would drop to keep that share, whatever a head loses by it.
class UnlimitedRemoval {
 public:
  // By the name of a proposer; `seed` is what it draws by, if it does.
  UnlimitedRemoval(std::string_view proposer, double keep, uint64_t seed = 0);

  PruneCandidate Propose(const ObservedPrompt& prompt, const ObservedPrompt::Layer& layer,
                         std::span<const double> head_weights) const;
  int64_t TargetSaving(const ObservedPrompt& prompt) const;

 private:
  double keep_;
  uint64_t seed_;
  ScoreParams score_;
  std::unique_ptr<Proposer> proposer_;
};

}  // namespace winnow
