// Which pages a decode quota retains, and what it costs that the query heads of a group choose
// different ones (EntroPrefill 7). Priorities and the choice itself are in select/page_priority.h.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/tensor_view.h"

namespace winnow {

// p_{l,g} of (29): p_j = Σ_h w_h·a_hj over the heads of a KV group, renormalised over the tokens
// that are resident; 0 for the others. a [H, T], weights [H], resident [T]; H is a multiple of the
// groups G of p [G, T]. A group without resident mass gives NaN.
void GroupImportance(TensorView<const double, 2> a, std::span<const double> weights,
                     std::span<const uint8_t> resident, TensorView<double, 2> p);

// Tokens whose pages are never dropped.
struct ProtectedTokens {
  int64_t sinks = 0;   // the first
  int64_t recent = 0;  // the last
};

// The pages [begin, end) that compete for a quota; all others are protected. The page that is
// written next is the last one, and protected, only while it is not full.
struct CompetingPages {
  int64_t begin = 0;
  int64_t end = 0;
};
CompetingPages FindCompetingPages(int64_t n_tokens, int64_t page_tokens,
                                  const ProtectedTokens& tokens);

enum class QuotaStatus : uint8_t {
  kMet,             // exactly as many pages as the quota says
  kAllKept,         // there are no more pages than that
  kBelowProtected,  // fewer than are protected: these alone are kept
};
std::string_view QuotaStatusName(QuotaStatus status);  // "ok", "all_kept", "quota_below_protected"

struct PageRetention {
  std::vector<int64_t> pages;  // retained, ascending
  QuotaStatus status = QuotaStatus::kMet;
};
// `quota` counts protected pages; ties go to the lower index. Proposition 7.1: with K competing
// pages retained, the page of a token of mass p > 1/(K + 1) is among them (strictly: K + 1 tokens
// of 1/(K + 1) each leave one out).
PageRetention RetainPages(std::span<const double> priorities, const CompetingPages& competing,
                          int64_t quota);

// UOR (28) of the query heads of one group.
struct UnionOverhead {
  double ratio = 0;  // tokens in the union over s
  double upper = 0;  // min(r, T/s)
};
// selected [r, T]: s >= 1 tokens in every row. CHECKs that all rows have the same s.
UnionOverhead ComputeUnionOverhead(TensorView<const uint8_t, 2> selected);

// 1 − |A ∩ B|/|A ∪ B| of two selections [T]; 0 for two empty ones. For sets of one size the UOR is
// 2/(2 − D).
double JaccardDisagreement(std::span<const uint8_t> a, std::span<const uint8_t> b);

// Appendix B on a real chunk: its negative collision entropy, ln Σ p² of the normalised p (37), and
// the mean over its pages of the page's own plus the logarithm of its share (38). They differ, so
// that neither stands for the other; by how much is not bounded.
struct PartitionScores {
  double chunk = 0;
  double mean_page = 0;  // -infinity where a page has no mass
};
// p [n], n >= 1, not normalised; the chunk's first page holds `first_page` of its tokens. NaN for a
// chunk without mass.
PartitionScores ScorePartition(std::span<const double> p, int64_t first_page, int64_t page_tokens);

}  // namespace winnow
