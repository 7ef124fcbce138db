// From page summaries to the few tokens that attention reads: score pages, take the best, then the
// best tokens in them (Vashista 7.1).
//
// Plain double functions over spans; ties go to the lower index, what is chosen keeps position
// order. A NaN score ranks above all others, so that what is broken is read and noticed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor_view.h"

namespace winnow {

enum class PageScore {
  kMean,     // q·k̄, the paper's
  kMeanStd,  // log n + q·k̄ + ½·Σ q_c²·σ_c²: the log mass if keys were normal in each channel
  kBox,      // Σ_c max(q_c·lo_c, q_c·hi_c): no key in the page scores higher
};

// Summaries of N pages of one KV head; only what the score needs has to be there.
struct PageSummaries {
  TensorView<const double, 2> mean;       // [N, D]; kMean, kMeanStd
  TensorView<const double, 2> deviation;  // [N, D], σ of each channel; kMeanStd
  TensorView<const double, 2> low, high;  // [N, D]; kBox
  std::span<const int64_t> counts;        // [N] tokens of a page, >= 1; kMeanStd
};

// scores [N] of the pages for a scaled query [D].
void ScorePages(PageScore kind, const PageSummaries& pages, std::span<const double> scaled_query,
                std::span<double> scores);

// One selection serves the R query heads of a KV head: shared [N] is the sum over the heads of
// softmax(log_mass[r, :]), log_mass [R, N]. A head whose scores are not finite makes every entry
// NaN.
void SharePageScores(TensorView<const double, 2> log_mass, std::span<double> shared);

// Indices of the `k` largest scores, ascending; all of them if there are fewer, none for k <= 0.
// Ties go to the lower index, a NaN ranks first.
std::vector<int64_t> TopIndices(std::span<const double> scores, int64_t k);
std::vector<int64_t> TopFloatIndices(std::span<const float> scores, int64_t k);

// Largest minus second largest score: the gap of Vashista 8. +inf for fewer than two; NaN if a
// score is.
double TopTwoGap(std::span<const double> scores);

struct RoutingLimits {
  int64_t pages = 0;   // P
  int64_t tokens = 0;  // K_c
};

struct Routing {
  std::vector<int64_t> pages;        // chosen pages, ascending
  std::vector<int64_t> tokens;       // chosen tokens, ascending
  std::vector<double> token_scores;  // of the chosen tokens, in the same order
  double score_gap = 0;              // top two among all tokens of the chosen pages
};

// keys [T, D] in pages of `page_tokens` (the last may be short), page_scores [⌈T/page_tokens⌉].
Routing RouteTokens(std::span<const double> page_scores, TensorView<const double, 2> keys,
                    std::span<const double> scaled_query, int64_t page_tokens,
                    RoutingLimits limits);

}  // namespace winnow
