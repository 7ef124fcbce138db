#include "policy/prefill/feasible_scan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"

namespace winnow {
namespace {

std::vector<int32_t> RemovalOrder(const ScanRequest& request) {
  std::vector<double> rank(request.score.begin(), request.score.end());
  if (request.tie_quantum > 0) {
    for (double& r : rank) r = std::rint(r / request.tie_quantum);
  }
  std::vector<int32_t> order(rank.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return rank[a] != rank[b] ? rank[a] < rank[b]
                              : request.chunk_tokens[a] > request.chunk_tokens[b];
  });
  return order;
}

}  // namespace

ScanResult FeasibleScan(const ScanRequest& request) {
  const auto n_chunks = static_cast<int64_t>(request.chunk_tokens.size());
  WINNOW_CHECK(std::ssize(request.score) == n_chunks, "{} scores of {} chunks",
               request.score.size(), n_chunks);
  ScanResult result{.order = RemovalOrder(request), .row_mass = {}};
  result.row_mass.assign(request.rows.size(), 0);
  for (const int32_t chunk : result.order) {
    if (result.saving >= request.target_saving) break;
    if (std::ssize(result.removed) >= n_chunks - request.min_chunks) break;
    bool fits = true;
    for (size_t a = 0; a < request.rows.size() && fits; ++a) {
      fits = result.row_mass[a] + request.rows[a].mass[chunk] <= request.rows[a].eps;
    }
    if (!fits) continue;
    for (size_t a = 0; a < request.rows.size(); ++a) {
      result.row_mass[a] += request.rows[a].mass[chunk];
    }
    result.removed.push_back(chunk);
    result.saving += request.chunk_tokens[chunk];
  }
  result.target_met = result.saving >= request.target_saving;
  return result;
}

}  // namespace winnow
