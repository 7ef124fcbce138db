#include "policy/prefill/chunks.h"

#include <algorithm>

#include "core/error.h"

namespace winnow {
namespace {

void CheckChunks(const PruneProblem& problem) {
  std::vector<int64_t> counted(problem.chunk_tokens.size(), 0);
  int32_t previous = -1;  // chunk of the token before
  int32_t last = -1;      // the last chunk that began
  for (int64_t at = 0; at < problem.n_tokens(); ++at) {
    const int32_t chunk = problem.chunk_of[at];
    if (chunk < -1 || chunk >= problem.n_chunks()) {
      Throw(ErrorKind::kInput, "token {} is in chunk {} of {}", at, chunk, problem.n_chunks());
    }
    if (chunk >= 0) {
      if (at < problem.n_sinks) Throw(ErrorKind::kInput, "the sink at {} is in a chunk", at);
      if (chunk != previous && chunk != ++last) {
        Throw(ErrorKind::kInput, "chunk {} is not contiguous, or out of order", chunk);
      }
      ++counted[chunk];
    }
    previous = chunk;
  }
  for (int64_t chunk = 0; chunk < problem.n_chunks(); ++chunk) {
    const int64_t tokens = problem.chunk_tokens[chunk];
    if (tokens < 1) Throw(ErrorKind::kInput, "chunk {} is empty", chunk);
    if (tokens != counted[chunk]) {
      Throw(ErrorKind::kInput, "chunk {} is said to have {} tokens and has {}", chunk, tokens,
            counted[chunk]);
    }
  }
}

void CheckObservers(const PruneProblem& problem) {
  if (problem.first_proposal < 0 || problem.n_proposal() < 1) {
    Throw(ErrorKind::kInput, "pruning needs a question after the documents: nothing observes them");
  }
  const auto candidate = std::find_if(problem.chunk_of.rbegin(), problem.chunk_of.rend(),
                                      [](int32_t chunk) { return chunk >= 0; });
  int64_t previous = problem.chunk_of.rend() - candidate - 1;  // the last candidate token, or -1
  if (problem.observers.front() <= previous) {
    Throw(ErrorKind::kInput, "the observer at {} is not after the documents, which end at {}",
          problem.observers.front(), previous);
  }
  for (const int64_t observer : problem.observers) {
    if (observer <= previous || observer >= problem.n_tokens()) {
      Throw(ErrorKind::kInput, "the observer at {} is out of order or outside of {} tokens",
            observer, problem.n_tokens());
    }
    previous = observer;
  }
}

}  // namespace

ProtectedChunks ProtectChunks(std::span<const int32_t> raw_chunk_of,
                              std::span<const uint8_t> is_protected) {
  if (raw_chunk_of.size() != is_protected.size()) {
    Throw(ErrorKind::kInput, "{} tokens have a chunk and {} a protection", raw_chunk_of.size(),
          is_protected.size());
  }
  int32_t n_raw = 0;
  for (const int32_t chunk : raw_chunk_of) n_raw = std::max(n_raw, chunk + 1);
  std::vector<int64_t> tokens(n_raw, 0);
  std::vector<uint8_t> touched(n_raw, 0);
  for (size_t at = 0; at < raw_chunk_of.size(); ++at) {
    if (raw_chunk_of[at] < 0) continue;
    ++tokens[raw_chunk_of[at]];
    if (is_protected[at] != 0) touched[raw_chunk_of[at]] = 1;
  }
  ProtectedChunks result;
  std::vector<int32_t> renumbered(n_raw, -1);
  for (int32_t chunk = 0; chunk < n_raw; ++chunk) {
    if (tokens[chunk] == 0 || touched[chunk] != 0) continue;
    renumbered[chunk] = static_cast<int32_t>(result.kept.size());
    result.kept.push_back(chunk);
    result.chunk_tokens.push_back(tokens[chunk]);
  }
  for (const int32_t chunk : raw_chunk_of) {
    result.chunk_of.push_back(chunk < 0 ? -1 : renumbered[chunk]);
  }
  return result;
}

void CheckProblem(const PruneProblem& problem) {
  if (problem.kv_heads < 1 || problem.query_heads < 1 ||
      problem.query_heads % problem.kv_heads != 0) {
    Throw(ErrorKind::kInput, "{} query heads cannot share {} KV heads", problem.query_heads,
          problem.kv_heads);
  }
  if (problem.n_sinks < 0 || problem.n_sinks > problem.n_tokens()) {
    Throw(ErrorKind::kInput, "{} sinks in {} tokens", problem.n_sinks, problem.n_tokens());
  }
  CheckChunks(problem);
  if (problem.n_chunks() > 0) CheckObservers(problem);
}

std::vector<int64_t> RetainedPositions(const PruneProblem& problem,
                                       std::span<const uint8_t> removed) {
  std::vector<int64_t> positions;
  for (int64_t at = 0; at < problem.n_tokens(); ++at) {
    const int32_t chunk = problem.chunk_of[at];
    if (chunk < 0 || removed[chunk] == 0) positions.push_back(at);
  }
  return positions;
}

}  // namespace winnow
