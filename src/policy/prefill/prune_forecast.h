// Whether pruning one prompt can pay, before it runs: EntroPrefill (31) and (32) with what layers,
// scores and copies cost on this machine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/prefill_account.h"
#include "policy/prefill/cost_model.h"

namespace winnow {

// Seconds, of one model, machine and number of threads.
struct PrefillCosts {
  LayerCost layer;         // every layer but the last
  double last_linear = 0;  // a of the last layer, where only the last token attends
  double score = 0;        // of a monitored layer: scores, scan, bound and audit, times U·T
  double remove = 0;       // what a removal changes in the observers' outputs, times U·T
  double copy = 0;         // a byte that is parked or compacted

  bool known() const { return layer.linear > 0 || layer.quadratic > 0; }
  bool operator==(const PrefillCosts&) const = default;
};

// Prefill of the tokens [begin, end) of one layer.
struct TimedRows {
  int64_t begin = 0;
  int64_t end = 0;
  double seconds = 0;
};

// a and b of one layer from timed pieces of its prefill, each of which takes
// a·(end − begin) + b·(end² − begin²): a line in begin + end of the seconds a token. Its slope is
// the median of all pairs' (Theil and Sen), its height the median of the rest, so that pieces that
// something disturbed, up to a quarter of them, move little. Neither is negative: a slope that
// would be is 0, and the other is fitted alone. Nothing without two different sums begin + end, or
// where the pieces are off the line by more than a tenth at the median: then something else was
// running. CHECKs 0 <= begin < end.
std::optional<LayerCost> FitLayerCost(std::span<const TimedRows> pieces);

// What is to be computed of one prompt. L layers, T tokens, U observers.
struct PrefillWork {
  std::vector<int64_t> windows;  // [L], of local layers; 0: global
  int64_t tokens = 0;            // T
  int64_t reused = 0;            // of them there already, at every layer,
  int resumed_layers = 0;        // and in the layers [0, resumed_layers)
  int64_t resumed = 0;           // so many, at least `reused`
  int64_t observers = 0;         // U
  std::vector<int> monitored;    // from 1, rising
  int min_streak = 0;            // v: as many layers pass before one can be accepted
  int64_t target_kept = 0;       // T' if the target is met to the token
  // Copied once chunks go: hidden states are parked and compacted, or keys and values of so many
  // bytes a token and layer are moved.
  double parked_bytes = 0;  // of all tokens
  double hidden_bytes = 0;  // of one retained token
  double kv_bytes = 0;      // of one retained token and layer below
};

// How a prefill went, or would go.
struct PrefillCourse {
  int64_t layers_scored = 0;
  int applied_layer = 0;  // from 1: the last one that all tokens pass; 0: nothing is dropped
  int64_t kept = 0;       // T'
};

// What that takes. Each layer is charged what it still has to compute, F_l(T) less F_l of the
// tokens that are there. A local layer counts as one of a·T + 2·b·W·T, which leaves out that its
// first W tokens see less, and that a gap leaves fewer tokens in a window. CHECKs its ranges.
PrefillSeconds Foresee(const PrefillCosts& costs, const PrefillWork& work,
                       const PrefillCourse& course);

// Without pruning, and accepted at the first and the last layer that can be. Nothing without such
// layers (too few of them for the streak).
std::optional<PruneForecast> ForeseePruning(const PrefillCosts& costs, const PrefillWork& work);

// "it would not pay: …", with the figures of the forecast.
std::string WhyItDoesNotPay(const PruneForecast& forecast);

// (32), which is about equal layers that compute everything: nothing where some are local, or
// tokens were there already.
std::optional<IdealSaving> ForeseeIdealSaving(const PrefillCosts& costs, const PrefillWork& work,
                                              const PrefillCourse& course);

}  // namespace winnow
