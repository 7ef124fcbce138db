// Which tokens of a prompt are candidates for removal, and which stay.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/prefill/prune_problem.h"

namespace winnow {

struct ProtectedChunks {
  std::vector<int32_t> chunk_of;      // [T], numbered anew; -1 for tokens that stay
  std::vector<int64_t> kept;          // by new number, the old one
  std::vector<int64_t> chunk_tokens;  // [k]
};

// A chunk that protection touches is protected as a whole (EntroPrefill 2.1); those that are left
// are numbered anew in order. raw_chunk_of [T]: -1 for tokens of no chunk; is_protected [T]. Throws
// Error(kInput) if they differ in length.
ProtectedChunks ProtectChunks(std::span<const int32_t> raw_chunk_of,
                              std::span<const uint8_t> is_protected);

// Throws Error(kInput) unless `problem` is what its comments promise: no empty chunk, chunks
// contiguous and in order, sinks protected, and, if there is anything to observe, at least one
// proposal observer, all of them in the prompt and after every candidate.
void CheckProblem(const PruneProblem& problem);

// Positions of the tokens that stay, strictly increasing. `removed` [k]: 1 for chunks that go.
std::vector<int64_t> RetainedPositions(const PruneProblem& problem,
                                       std::span<const uint8_t> removed);

}  // namespace winnow
