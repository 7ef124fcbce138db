// The papers' figures for attention of one query head at one token: how diffuse it is, what a few
// tokens recover of it, and what each estimate of the others gets wrong. All in double; "not
// defined" is NaN.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor_view.h"
#include "eval/phi_completion.h"
#include "policy/residual/budget.h"
#include "policy/residual/estimators.h"
#include "policy/select/routing.h"

namespace winnow {

// How the tokens that were not read are estimated (Residual-Mass Accounting; the names of
// `residual=`).
enum class Completion : uint8_t {
  kNone,      // selection only: the paper's Top-K
  kCentroid,  // by page, its unread tokens' mean key and value
  kCumulant,  // the same with the keys' variance by channel, clipped to what is sound
  kSketch,    // by token, from low-bit copies of keys and values
  kResa,      // rank-1 logit prior
  kSample,    // a uniform sample of the unread tokens
  kPhi,       // learned features
};
std::string_view CompletionName(Completion completion);
// Throws Error(kUsage) that offers the nearest name.
Completion ParseCompletion(std::string_view name);
std::vector<std::string> CompletionNames();

struct DiagnosisOptions {
  // Completion at a fixed share of exact tokens, anchors included (the paper's budget): Table 3.
  double fraction = 0.01;
  AnchorRule anchors;
  // Retrieved tokens of the curves C_mid(K) and error against K; ascending.
  std::vector<int64_t> ks = {16, 32, 64, 128, 256, 512, 1024};
  // kNone first, always.
  std::vector<Completion> completions = {Completion::kNone,     Completion::kCentroid,
                                         Completion::kCumulant, Completion::kSketch,
                                         Completion::kResa,     Completion::kSample};
  int64_t sample_tokens = 128;        // of kSample
  const FeatureMaps* maps = nullptr;  // of kPhi, which a run needs them for
  // The set that Vashista's routing by mean keys chooses, for its leakage.
  RoutingLimits routing = {.pages = 32, .tokens = 256};
  uint64_t seed = 1;

  bool Uses(Completion completion) const;
  // Throws Error(kUsage) for a value out of range, an empty list or one given twice.
  void Validate() const;
};

// What one query head attends to. T tokens, of which the last `n_generated` follow the prompt.
struct HeadView {
  std::span<const double> scaled_query;    // [D]
  TensorView<const double, 2> keys;        // [T, D]
  TensorView<const double, 2> values;      // [T, D]
  TensorView<const double, 2> key_copies;  // [T, D] low-bit copies; only for kSketch
  TensorView<const double, 2> value_copies;
  const ResaMeans* means = nullptr;  // only for kResa
  PhiView phi;                       // only for kPhi; none: the maps abstain
  int64_t page_tokens = 0;
  int64_t n_generated = 0;
  uint64_t seed = 0;  // of this head's sample
};

// One estimate with one retrieved set.
struct CompletionFigures {
  double error = 0;                 // e = ‖ô − o‖₁/‖o‖₁
  double error_no_subtraction = 0;  // e where the estimate counts the retrieved tokens again
  double log_partition_error = 0;   // log Ẑ_R − log Z_R; NaN without an estimate
  double residual_share = 0;        // ρ_res = Ẑ/(Z_E + Ẑ)
  std::vector<double> error_at;     // e with each of DiagnosisOptions::ks retrieved instead
};

// Softmax mass off a set of tokens that was read, and its bounds (certify/leakage.h, ε = 1).
struct LeakageFigures {
  double tokens = 0;      // in the set
  double leak = 0;        // the truth
  double tight = 0;       // Σ off the set of exp(score − best score in the set)
  double paper_form = 0;  // tokens off the set · exp(−(best score in it − best off it))
};

struct HeadFigures {
  double entropy_nats = 0;          // H_mid
  double entropy = 0;               // H_mid/log|mid|
  double middle_share = 0;          // of the whole mass, in the middle
  double score_gap = 0;             // largest minus second largest scaled score (Vashista 8)
  std::vector<double> recovery;     // C_mid(K) for DiagnosisOptions::ks
  double exact_no_subtraction = 0;  // Table 3's ExactNoSub: e with the true middle added whole
  std::vector<CompletionFigures> completions;  // as in DiagnosisOptions
  LeakageFigures top;                          // off anchors and the K best tokens
  LeakageFigures routed;                       // off anchors and what Vashista's routing chose

  // e of selection alone minus e of completion `i`.
  double Gain(size_t i) const { return completions[0].error - completions[i].error; }
  // Every number, in a fixed order.
  std::vector<double*> Numbers();
};

// K of the fixed share for a prompt of so many tokens.
int64_t FixedBudget(const DiagnosisOptions& options, int64_t n_prompt);

// Figures of one head. `options` are valid; T >= 1; the view has what the completions need.
HeadFigures DiagnoseHead(const HeadView& head, const DiagnosisOptions& options);

// Number by number, over those that are finite; NaN where none is. At least one.
HeadFigures MeanFigures(std::span<const HeadFigures> figures);

}  // namespace winnow
