#include "engine/parking.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace winnow {
namespace {

int64_t CommonTokens(std::span<const TokenId> a, std::span<const TokenId> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

}  // namespace

void ParkedPrompts::Park(ParkedPrompt prompt) {
  const auto n_rows = [](const ParkedPrompt& p) { return std::ssize(p.tokens) - p.first_row; };
  const int64_t needed = BytesOf(n_rows(prompt));
  WINNOW_CHECK(needed <= max_bytes_);
  for (auto it = prompts_.begin(); it != prompts_.end();) {
    const bool continued = CommonTokens(it->tokens, prompt.tokens) == std::ssize(it->tokens);
    if (continued) bytes_ -= BytesOf(n_rows(*it));
    it = continued ? prompts_.erase(it) : std::next(it);
  }
  while (bytes_ + needed > max_bytes_) DropOldest();
  bytes_ += needed;
  prompts_.push_front(std::move(prompt));
}

int64_t ParkedPrompts::UsableTokens(const ParkedPrompt& prompt, std::span<const TokenId> tokens,
                                    int64_t max_tokens) const {
  int64_t n = std::min(CommonTokens(prompt.tokens, tokens), max_tokens);
  n -= n % page_slots_;
  // A local layer lacks what its window had passed by the end of the parked prompt.
  for (int layer = 0; layer < prompt.n_layers; ++layer) {
    const int64_t first_needed =
        windows_[layer] == 0 ? 0 : std::max<int64_t>(0, n - windows_[layer]);
    if (prompt.kv.first_resident(layer) > first_needed) return 0;
  }
  return n;
}

ParkedPrompts::Match ParkedPrompts::Find(std::span<const TokenId> tokens, int64_t n_reused,
                                         int64_t max_tokens) {
  auto best = prompts_.end();
  int64_t best_tokens = n_reused;
  for (auto it = prompts_.begin(); it != prompts_.end(); ++it) {
    if (it->first_row > n_reused) continue;
    const int64_t n = UsableTokens(*it, tokens, max_tokens);
    if (n <= best_tokens) continue;
    best = it;
    best_tokens = n;
  }
  if (best == prompts_.end()) return {};
  prompts_.splice(prompts_.begin(), prompts_, best);
  return {&prompts_.front(), best_tokens};
}

bool ParkedPrompts::DropOldest() {
  if (prompts_.empty()) return false;
  bytes_ -= BytesOf(std::ssize(prompts_.back().tokens) - prompts_.back().first_row);
  prompts_.pop_back();
  return true;
}

}  // namespace winnow
