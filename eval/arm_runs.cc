#include "eval/arm_runs.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "policy/arm.h"

namespace winnow {
namespace {

constexpr char kReference[] = "dense";

class Runner {
 public:
  Runner(Engine* engine, const EvalSample& sample, const ArmRunHooks& hooks)
      : engine_(engine), sample_(sample), hooks_(hooks) {}

  // The answer, or the run along the sample's continuation; `on_logits` may be empty.
  RequestResult Answer(const std::string& arm,
                       std::function<void(int64_t, std::span<const float>)> on_logits) {
    Request request = NewRequest(arm, std::move(on_logits));
    request.max_new_tokens = sample_.max_new_tokens;
    if (!sample_.continuation.empty()) Force(request, sample_.continuation);
    return Run(std::move(request));
  }

  // A run along `tokens`: each passes a decode step of the arm.
  RequestResult Along(const std::string& arm, const std::vector<TokenId>& tokens,
                      std::function<void(int64_t, std::span<const float>)> on_logits) {
    Request request = NewRequest(arm, std::move(on_logits));
    Force(request, tokens);
    return Run(std::move(request));
  }

 private:
  Request NewRequest(const std::string& arm,
                     std::function<void(int64_t, std::span<const float>)> on_logits) {
    Request request;
    request.tokens = sample_.tokens;
    request.spans = sample_.spans;
    request.arm = arm;
    request.on_prefill = hooks_.on_prefill;
    request.on_logits = std::move(on_logits);
    return request;
  }

  static void Force(Request& request, const std::vector<TokenId>& tokens) {
    request.forced_tokens = tokens;
    request.max_new_tokens = static_cast<int64_t>(tokens.size());
    request.ignore_end_tokens = true;  // an end among them ends nothing
  }

  RequestResult Run(Request request) {
    const RequestId id = engine_->Submit(std::move(request));
    while (true) {
      if (std::optional<RequestResult> result = engine_->TakeResult(id)) return *std::move(result);
      if (hooks_.should_stop && hooks_.should_stop()) engine_->Cancel(id);
      engine_->Step();
    }
  }

  Engine* engine_;
  const EvalSample& sample_;
  const ArmRunHooks& hooks_;
};

std::optional<int64_t> FirstDifference(const std::vector<TokenId>& a,
                                       const std::vector<TokenId>& b) {
  const auto [at, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (at == a.end() && other == b.end()) return std::nullopt;
  return at - a.begin();
}

[[noreturn]] void ThrowReferenceFailed(const RequestResult& result) {
  // An internal error stays one.
  if (!result.error_kind.has_value()) throw std::runtime_error("dense: " + result.error);
  Throw(*result.error_kind, "dense: {}", result.error);
}

bool Cancelled(const RequestResult& result) {
  return result.finish_reason == FinishReason::kCancelled;
}

bool Failed(const RequestResult& result) { return result.finish_reason == FinishReason::kFailed; }

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void AddPruning(const EvalSample& sample, const PrefillAccount& policy, ArmRun* run) {
  run->pruned = policy.outcome == PruneOutcome::kPruned;
  if (sample.evidence.empty()) return;
  run->evidence_kept = std::ranges::none_of(policy.chunks, [&](const PruneChunkAccount& chunk) {
    return !chunk.kept && std::ranges::find(sample.evidence, chunk.first) != sample.evidence.end();
  });
}

// Fills `run` and, for the reference, `reference`. False if it was stopped.
bool RunArm(Runner* runner, const EvalSample& sample, DenseReference* reference, ArmRun* run) {
  const bool is_reference = run->arm == kReference;
  const bool along = !sample.continuation.empty();
  Fidelity fidelity;
  const auto compare = [&](int64_t index, std::span<const float> row) {
    fidelity.Add(reference->logits.Row(index), row, reference->tokens[index]);
  };
  const auto keep = [&](int64_t /*index*/, std::span<const float> row) {
    reference->logits.Append(row);
  };
  const auto start = std::chrono::steady_clock::now();
  if (is_reference) {
    run->result = runner->Answer(run->arm, keep);
  } else if (along) {
    run->result = runner->Answer(run->arm, compare);
  } else {
    run->result = runner->Answer(run->arm, nullptr);
  }
  run->seconds = SecondsSince(start);
  if (Cancelled(run->result)) return false;
  if (is_reference) {
    if (Failed(run->result)) ThrowReferenceFailed(run->result);
    reference->tokens = run->result.tokens;
    for (int64_t i = 0; i < reference->logits.rows(); ++i) compare(i, reference->logits.Row(i));
  } else if (!along) {
    run->first_difference = FirstDifference(run->result.tokens, reference->tokens);
    const RequestResult forced = runner->Along(run->arm, reference->tokens, compare);
    if (Cancelled(forced)) return false;
    if (Failed(forced)) run->error = forced.error;
  }
  if (Failed(run->result)) run->error = run->result.error;
  if (run->result.ledger.pruning != nullptr) {
    AddPruning(sample, run->result.ledger.pruning->policy, run);
  }
  if (run->error.empty()) run->fidelity = fidelity;
  if (!sample.answers.empty() && !Failed(run->result)) {
    run->score = ScoreAnswer(run->result.text, sample.answers, sample.match);
  }
  return true;
}

}  // namespace

std::optional<std::vector<ArmRun>> RunArms(Engine* engine, const EvalSample& sample,
                                           const std::vector<std::string>& arms,
                                           const ArmRunOptions& options, const ArmRunHooks& hooks) {
  WINNOW_CHECK(!arms.empty() && arms.front() == kReference);
  Runner runner(engine, sample, hooks);
  DenseReference reference;
  std::vector<ArmRun> runs;
  for (const std::string& arm : arms) {
    if (hooks.on_arm) hooks.on_arm(arm);
    // What every layer holds already is not pruned.
    if (options.fresh_prefill || ParseArm(arm).prefill_fingerprint != 0) engine->ClearPrefixes();
    ArmRun run;
    run.arm = arm;
    if (!RunArm(&runner, sample, &reference, &run)) return std::nullopt;
    if (hooks.on_run) hooks.on_run(run);
    runs.push_back(std::move(run));
  }
  return runs;
}

std::optional<DenseReference> RunReference(Engine* engine, const EvalSample& sample,
                                           const ArmRunHooks& hooks) {
  DenseReference reference;
  ArmRun run;
  run.arm = kReference;
  Runner runner(engine, sample, hooks);
  if (!RunArm(&runner, sample, &reference, &run)) return std::nullopt;
  reference.result = std::move(run.result);
  return reference;
}

std::optional<ArmRun> RunAlong(Engine* engine, const EvalSample& sample,
                               const DenseReference& reference, const std::string& arm,
                               const ArmRunHooks& hooks) {
  ArmRun run;
  run.arm = arm;
  Fidelity fidelity;
  const auto start = std::chrono::steady_clock::now();
  run.result = Runner(engine, sample, hooks)
                   .Along(arm, reference.tokens, [&](int64_t index, std::span<const float> row) {
                     fidelity.Add(reference.logits.Row(index), row, reference.tokens[index]);
                   });
  run.seconds = SecondsSince(start);
  if (Cancelled(run.result)) return std::nullopt;
  run.error = run.result.error;
  if (!Failed(run.result)) run.fidelity = fidelity;
  return run;
}

std::vector<std::string> ReferenceFirst(const std::vector<std::string>& arms) {
  std::vector<std::string> ordered = {kReference};
  bool reference_seen = false;
  for (const std::string& arm : arms) {
    ParseArm(arm);
    const bool is_reference = arm == kReference;
    if (is_reference ? reference_seen
                     : std::find(ordered.begin(), ordered.end(), arm) != ordered.end()) {
      Throw(ErrorKind::kUsage, "the arm '{}' is given twice", arm);
    }
    reference_seen |= is_reference;
    if (!is_reference) ordered.push_back(arm);
  }
  return ordered;
}

}  // namespace winnow
