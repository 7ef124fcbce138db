// Finds the cheapest arm of a model that stays as close to dense as asked for: selector, budget,
// dense layers, and where completion abstains.
//
// Cost is what decode attention reads, in bytes against dense's, by the ledger; closeness is the
// judge's (fidelity.h), along dense's own output. Everything is chosen on calibration prompts, and
// then measured once more on others.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "eval/arm_runs.h"
#include "eval/task.h"
#include "policy/profile.h"

namespace winnow {

// One arm on the prompts.
struct Trial {
  std::string stage;  // which part of the search tried it: "select", "layers", "gates", "given",
                      // "closest" (none met the target) or "test"
  std::string arm;
  ProfileFigures figures;
  double attention_ms = 0;  // a step, all layers: score, select, read, estimate, account
  bool met = false;         // the target; on calibration prompts with its margin
  // Given up before the last prompt, since what was seen sufficed to miss the target: the KL is at
  // least the figure, the agreement at most.
  bool cut_short = false;
};

enum class GateSearch : uint8_t {
  kNone,
  kLayers,  // a layer as a whole
  kHeads,   // then, in the layers that go on, single KV heads
};

struct CalibrationOptions {
  // An arm is chosen if its KL on the calibration prompts is at most 0.7 times the target's.
  FidelityTarget target;
  GateSearch gates = GateSearch::kLayers;
  std::vector<EvalSample> calibrate;  // at least one
  std::vector<EvalSample> test;       // likewise
  // Arms to choose from; empty: the ladders of CalibrationArms, searched, and what lies beside the
  // best of them.
  std::vector<std::string> arms;
};

struct CalibrationHooks {
  // Ends the search; what has met the target by then is tested all the same.
  std::function<bool()> should_stop;
  // "reading prompt 3 of 12", before each piece of work.
  std::function<void(const std::string& what)> on_work;
  std::function<void(const Trial&)> on_trial;
};

struct CalibrationResult {
  bool complete = false;  // false: stopped before the search was through
  bool met = false;       // the target, with the margin, on the calibration prompts
  // The cheapest that met the target, or else the closest; dense: stopped before any had.
  std::string arm = "dense";
  std::vector<CompletionGate> completion_off;
  double dense_attention_ms = 0;  // a step on the calibration prompts
  std::vector<Trial> tried;       // in this order, all but the last on the calibration prompts
  ProfileFigures calibration;
  ProfileFigures test;
};

// Arms with all the policies that a search may try: what the engine's pages have to keep planes
// for.
std::vector<std::string> CalibrationArms(const std::vector<std::string>& arms, int n_layers);

// `engine` keeps the planes of CalibrationArms; it is fastest when its pool holds all calibration
// prompts at once. Throws what RunReference throws, and Error(kInput) if an arm fails.
//
// Each prompt is read once, densely; an arm then adopts its pages, and passes dense's tokens.
// Coarse to fine: families of arms from cheap to dear, the budgets of each by bisection; smaller
// steps of budget and dense layers around the best; gates.
CalibrationResult Calibrate(Engine* engine, const ModelConfig& config,
                            const CalibrationOptions& options, const CalibrationHooks& hooks);

// What was tried, for people.
std::string CalibrationTable(const CalibrationResult& result);
nlohmann::ordered_json ToJson(const Trial& trial);

}  // namespace winnow
