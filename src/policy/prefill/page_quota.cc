#include "policy/prefill/page_quota.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/check.h"
#include "policy/select/page_priority.h"

namespace winnow {

void GroupImportance(TensorView<const double, 2> a, std::span<const double> weights,
                     std::span<const uint8_t> resident, TensorView<double, 2> p) {
  const auto [n_heads, n_tokens] = a.shape;
  const int64_t n_groups = p.shape[0];
  WINNOW_CHECK(n_groups >= 1 && n_heads % n_groups == 0 && std::ssize(weights) == n_heads &&
                   std::ssize(resident) == n_tokens && p.shape[1] == n_tokens,
               "{} heads, {} groups, {} tokens", n_heads, n_groups, n_tokens);
  const int64_t group_size = n_heads / n_groups;
  for (int64_t g = 0; g < n_groups; ++g) {
    double total = 0;
    for (int64_t j = 0; j < n_tokens; ++j) {
      double importance = 0;
      for (int64_t h = g * group_size; resident[j] != 0 && h < (g + 1) * group_size; ++h) {
        importance += weights[h] * a.row(h)[j];
      }
      p.row(g)[j] = importance;
      total += importance;
    }
    for (int64_t j = 0; j < n_tokens; ++j) p.row(g)[j] /= total;
  }
}

CompetingPages FindCompetingPages(int64_t n_tokens, int64_t page_tokens,
                                  const ProtectedTokens& tokens) {
  WINNOW_CHECK(n_tokens >= 0 && page_tokens >= 1 && tokens.sinks >= 0 && tokens.recent >= 0);
  const int64_t n_pages = (n_tokens + page_tokens - 1) / page_tokens;
  CompetingPages competing;
  competing.begin = std::min((tokens.sinks + page_tokens - 1) / page_tokens, n_pages);
  const int64_t first_recent = std::max<int64_t>(n_tokens - tokens.recent, 0);
  // Whole pages before the first recent token; so many that are full, where the last one is not.
  competing.end = tokens.recent > 0 ? first_recent / page_tokens : n_tokens / page_tokens;
  competing.end = std::max(competing.begin, competing.end);
  return competing;
}

std::string_view QuotaStatusName(QuotaStatus status) {
  switch (status) {
    case QuotaStatus::kMet:
      return "ok";
    case QuotaStatus::kAllKept:
      return "all_kept";
    case QuotaStatus::kBelowProtected:
      return "quota_below_protected";
  }
  return "";
}

PageRetention RetainPages(std::span<const double> priorities, const CompetingPages& competing,
                          int64_t quota) {
  const int64_t n_pages = std::ssize(priorities);
  const int64_t n_protected = n_pages - (competing.end - competing.begin);
  PageRetention retention;
  retention.pages = RetainedPages(priorities, competing.begin, competing.end, quota);
  if (quota < n_protected) {
    retention.status = QuotaStatus::kBelowProtected;
  } else if (quota >= n_pages) {
    retention.status = QuotaStatus::kAllKept;
  }
  return retention;
}

UnionOverhead ComputeUnionOverhead(TensorView<const uint8_t, 2> selected) {
  const int64_t n_heads = selected.shape[0];
  const int64_t n_tokens = selected.shape[1];
  WINNOW_CHECK(n_heads >= 1);
  const auto count = [&](int64_t h) {
    return std::count_if(selected.row(h), selected.row(h) + n_tokens,
                         [](uint8_t x) { return x != 0; });
  };
  const int64_t size = count(0);
  WINNOW_CHECK(size >= 1, "no token is selected");
  for (int64_t h = 1; h < n_heads; ++h) {
    WINNOW_CHECK(count(h) == size, "{} and {} tokens are selected", size, count(h));
  }
  int64_t in_union = 0;
  for (int64_t j = 0; j < n_tokens; ++j) {
    bool any = false;
    for (int64_t h = 0; h < n_heads; ++h) any = any || selected.row(h)[j] != 0;
    in_union += any ? 1 : 0;
  }
  const auto s = static_cast<double>(size);
  return {static_cast<double>(in_union) / s,
          std::min(static_cast<double>(n_heads), static_cast<double>(n_tokens) / s)};
}

double JaccardDisagreement(std::span<const uint8_t> a, std::span<const uint8_t> b) {
  WINNOW_CHECK(a.size() == b.size());
  int64_t both = 0;
  int64_t any = 0;
  for (size_t j = 0; j < a.size(); ++j) {
    both += a[j] != 0 && b[j] != 0 ? 1 : 0;
    any += a[j] != 0 || b[j] != 0 ? 1 : 0;
  }
  return any == 0 ? 0 : 1 - static_cast<double>(both) / static_cast<double>(any);
}

PartitionScores ScorePartition(std::span<const double> p, int64_t first_page, int64_t page_tokens) {
  WINNOW_CHECK(!p.empty() && page_tokens >= 1 && 1 <= first_page && first_page <= page_tokens);
  const auto sums = [](std::span<const double> q) {
    double mass = 0;
    double squares = 0;
    for (double x : q) {
      mass += x;
      squares += x * x;
    }
    return std::pair(mass, squares);
  };
  const auto [chunk_mass, chunk_squares] = sums(p);
  PartitionScores scores;
  scores.chunk = std::log(chunk_squares / (chunk_mass * chunk_mass));
  const int64_t n = std::ssize(p);
  double total = 0;
  int64_t n_pages = 0;
  for (int64_t begin = 0, end = std::min(first_page, n); begin < n;
       begin = end, end = std::min(end + page_tokens, n)) {
    const auto [mass, squares] = sums(p.subspan(begin, end - begin));
    total += mass > 0 ? std::log(squares / (mass * mass)) + std::log(mass / chunk_mass)
                      : -std::numeric_limits<double>::infinity();
    ++n_pages;
  }
  scores.mean_page = total / static_cast<double>(n_pages);
  return scores;
}

}  // namespace winnow
