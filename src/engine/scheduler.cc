#include "engine/scheduler.h"

#include <algorithm>

#include "core/check.h"

namespace winnow {

StepPlan PlanStep(std::span<const SequenceStatus> sequences, const StepLimits& limits) {
  StepPlan plan;
  int64_t committed_pages = 0;
  int active = 0;
  for (const SequenceStatus& s : sequences) {
    if (s.phase == Phase::kWaiting) continue;
    committed_pages += s.worst_case_pages;
    ++active;
  }
  bool admitting = true;
  for (int i = 0; i < static_cast<int>(sequences.size()); ++i) {
    const SequenceStatus& s = sequences[i];
    if (s.phase == Phase::kDecode) {
      if (limits.decode) plan.decode.push_back(i);
      continue;
    }
    if (s.phase == Phase::kWaiting) {
      admitting = admitting && active < limits.max_batch &&
                  committed_pages + s.worst_case_pages <= limits.capacity_pages;
      if (admitting) {
        plan.admit.push_back(i);
        committed_pages += s.worst_case_pages;
        ++active;
      }
      continue;
    }
    if (plan.prefill.empty()) {
      plan.prefill.push_back({.sequence = i,
                              .layer = s.layer,
                              .begin = s.next_token,
                              .end = std::min(s.next_token + limits.prefill_chunk, s.n_prompt)});
    }
  }
  return plan;
}

int64_t WorstCasePages(const ModelConfig& config, int64_t n_tokens, int page_slots,
                       int64_t prefill_chunk) {
  const auto pages_for = [page_slots](int64_t n) { return (n + page_slots - 1) / page_slots; };
  int64_t pages = 0;
  for (const LayerConfig& layer : config.layers) {
    const int64_t all = pages_for(n_tokens);
    // Released up to a page boundary below n - window - G before the next chunk is appended.
    const int64_t local = pages_for(layer.window + prefill_chunk) + 3;
    pages += layer.window > 0 ? std::min(all, local) : all;
  }
  return pages;
}

int64_t TokensThatFit(const ModelConfig& config, int64_t pages, int page_slots,
                      int64_t prefill_chunk) {
  int64_t low = 0;  // fits
  int64_t high = std::max<int64_t>(config.context_length, 1);
  if (WorstCasePages(config, high, page_slots, prefill_chunk) <= pages) return high;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (WorstCasePages(config, middle, page_slots, prefill_chunk) <= pages ? low : high) = middle;
  }
  return low;
}

}  // namespace winnow
