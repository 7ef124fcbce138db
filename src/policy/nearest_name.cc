#include "policy/nearest_name.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace winnow {
namespace {

// Levenshtein distance, one row at a time.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row.back();
}

}  // namespace

std::string NearestName(std::string_view name, const std::vector<std::string>& candidates) {
  std::string best;
  // Nothing in common is not near, as two digits are.
  size_t best_distance = std::min(std::max<size_t>(1, (name.size() + 2) / 3) + 1, name.size());
  for (const std::string& candidate : candidates) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  if (!best.empty() || name.size() < 2) return best;
  // What only one of them begins with: 'llama' for 'llama.cpp'.
  const auto begins = [&](const std::string& candidate) { return candidate.starts_with(name); };
  const auto first = std::find_if(candidates.begin(), candidates.end(), begins);
  return std::count_if(candidates.begin(), candidates.end(), begins) == 1 ? *first : "";
}

std::string DidYouMean(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string nearest = NearestName(name, candidates);
  return nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest);
}

std::string UnknownName(std::string_view what, std::string_view name,
                        const std::vector<std::string>& known) {
  return fmt::format("unknown {} '{}'{}; known: {}", what, name, DidYouMean(name, known),
                     Joined(known));
}

std::string Joined(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace winnow
