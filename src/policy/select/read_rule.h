// The rule by which a step reads pages exactly: some always, of the others the best.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "ops/page_scan.h"
#include "policy/params.h"

namespace winnow {

// What a step does about a KV head that is above tolerance or below the gap.
enum class Fallback : uint8_t {
  kWiden,  // doubles the set, twice at most, and then reads everything
  kDense,  // reads everything
  kCap,    // nothing: it is only counted
};
inline constexpr int kMaxWidenings = 2;

struct ReadRule {
  int64_t budget = 256;  // routed tokens, on top of those always read
  // > 0: instead of the budget, this share of the prompt is read, with its sinks and tail
  // (Residual-Mass Accounting, exact support: K of ExactBudget)
  double fraction = 0;
  double mass = 0;       // > 0: instead of the budget, the smallest set with this estimated share
  int64_t floor = 0;     // tokens; with `mass`
  int64_t cap = 0;       // tokens; with `mass`; 0: none
  double tolerance = 1;  // unread share above which the step falls back; 1: never
  // The tolerance is for the upper end of a certificate, after reading, and not for the estimate.
  bool certified = false;
  // Certified error of the output, relative to its norm, above which the step falls back; infinite:
  // never.
  double error_tolerance = std::numeric_limits<double>::infinity();
  double gap = 0;  // least difference of the two best pages' scores; 0: any (Vashista 10.3)
  Fallback fallback = Fallback::kWiden;
  int64_t sinks = 4;         // tokens always read: the first,
  int64_t recent = 64;       // the last,
  int64_t gen_exact = 1024;  // generated ones, so many at most,
  int64_t tail = 0;          // and the last before those
  int dense_layers = 2;      // the first layers are read in full

  bool bounds_error() const { return error_tolerance < std::numeric_limits<double>::infinity(); }

  // Reads the parameters of a `select=` policy. Throws Error(kUsage), also for contradictions.
  static ReadRule FromParams(Params& params, bool sparse_everywhere);
  // The rule of `select=all`, which only the first layers can be kept from.
  static ReadRule OfEverything(Params& params);
};

// Pages [begin, end) of a layer that may be left unread.
struct MiddlePages {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t budget = 0;  // tokens of it to read
};
// The last `n_generated` of `n_tokens` follow the prompt.
MiddlePages FindMiddle(const ReadRule& rule, int64_t n_tokens, int64_t n_generated, int slots);

struct PageChoice {
  std::vector<int32_t> read;    // of the middle, ascending
  std::vector<int32_t> unread;  // the others of the middle, ascending
  // Tokens that count, counted through the pages of `read` in order, ascending; none: all.
  std::vector<int32_t> tokens;
  int widened = 0;                 // times that the set was doubled
  bool all_for_tolerance = false;  // widening did not do: everything is read
  bool over_tolerance = false;     // and stays so: Fallback::kCap
  bool not_finite = false;         // a share is not finite: everything is read
  std::vector<float> descending;   // scratch

  // Reads also the `n` best of the unread pages; returns those, ascending.
  std::vector<int32_t> ReadMore(std::span<const float> pooled, int64_t n);
};

// Chooses by pooled shares [n_pages], the sum over `group` query heads of each page's share of its
// head's mass. Ties go to the lower page.
void ChoosePages(const ReadRule& rule, std::span<const float> pooled, int group, int slots,
                 MiddlePages middle, PageChoice* choice);

// Δ̂ of Vashista 8 over the pages of the middle: the best score of a page less the second best
// page's, the least over the `group` query heads of `masses`. Infinite for fewer than two pages.
float ScoreGap(const PageMasses& masses, int group, MiddlePages middle);

// Of `pages`, those to estimate: all but the smallest whose pooled shares add up to at most `tail`
// of the pooled shares of all pages. Order is kept.
void DropTail(std::span<const float> pooled, double tail, std::vector<int32_t>* pages);

}  // namespace winnow
