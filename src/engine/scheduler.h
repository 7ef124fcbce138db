// What the next step does, as pure functions over plain records: testable without a model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"

namespace winnow {

enum class Phase : uint8_t { kWaiting, kPrefill, kDecode };

struct SequenceStatus {
  Phase phase = Phase::kWaiting;
  int64_t worst_case_pages = 0;  // until the request ends
  // Prefill: the layer it is in, the tokens of that layer that are done, and where its prompt ends.
  int layer = 0;
  int64_t next_token = 0;
  int64_t n_prompt = 0;
};

struct StepLimits {
  int64_t capacity_pages = 0;
  int max_batch = 1;            // sequences that are admitted at a time, and so decode together
  int64_t prefill_chunk = 512;  // tokens of a quantum
  bool decode = true;           // false: those that decode wait
};

struct PlannedQuantum {
  int sequence = 0;  // index into the statuses
  int layer = 0;
  int64_t begin = 0;  // tokens [begin, end) of the prompt
  int64_t end = 0;
};

struct StepPlan {
  std::vector<int> admit;   // first come, first served; nobody overtakes
  std::vector<int> decode;  // all that decode, as one batch
  // One quantum a step, of the first sequence that still reads its prompt, so that a long prompt
  // delays the decoding ones by one quantum a token and no more.
  std::vector<PlannedQuantum> prefill;
};

// Statuses are in order of submission. A sequence admitted by this plan starts its prefill in the
// next one: admission may find a part of its prompt in resident pages.
StepPlan PlanStep(std::span<const SequenceStatus> sequences, const StepLimits& limits);

// Most pages that a sequence of `n_tokens` tokens holds at any time, all layers. A local layer
// holds its window, one page of slack, and the chunk that is being written.
int64_t WorstCasePages(const ModelConfig& config, int64_t n_tokens, int page_slots,
                       int64_t prefill_chunk);

// The largest number of tokens whose WorstCasePages is at most `pages`.
int64_t TokensThatFit(const ModelConfig& config, int64_t pages, int page_slots,
                      int64_t prefill_chunk);

}  // namespace winnow
