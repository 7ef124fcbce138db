// Pruned prompts whose dropped chunks can come back: the hidden states of all tokens above the
// layer where the prompt was pruned, and the pages below it. A later request that begins with the
// same tokens runs only the layers above for them.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "core/memory.h"
#include "kv/sequence_kv.h"
#include "text/tokenizer.h"

namespace winnow {

struct ParkedPrompt {
  std::vector<TokenId> tokens;  // [T]
  int n_layers = 0;             // layers [0, n_layers) of `kv` hold all of them, densely
  SequenceKv kv;                // the other layers are empty
  int64_t first_row = 0;        // tokens before this one had passed every layer already
  AlignedBuffer<float> hidden;  // [T - first_row, E]: what layer n_layers would take in
};

class ParkedPrompts {
 public:
  // `max_bytes`: of hidden states, all prompts together. `windows[layer]` as in PrefixCache.
  ParkedPrompts(int64_t max_bytes, std::vector<int64_t> windows, int page_slots, int64_t row_floats)
      : max_bytes_(max_bytes),
        windows_(std::move(windows)),
        page_slots_(page_slots),
        row_floats_(row_floats) {}

  // Bytes that the hidden states of so many tokens take, and whether they may be parked at all.
  int64_t BytesOf(int64_t n_tokens) const {
    return n_tokens * row_floats_ * static_cast<int64_t>(sizeof(float));
  }
  bool Fits(int64_t n_tokens) const { return BytesOf(n_tokens) <= max_bytes_; }

  // Keeps it, in place of prompts that it continues and, if memory asks for it, of those used
  // longest ago. CHECKs that it fits.
  void Park(ParkedPrompt prompt);

  struct Match {
    const ParkedPrompt* prompt = nullptr;  // null: none; valid until the next Park or Drop
    int64_t n_tokens = 0;                  // of it that can be used, a multiple of G
  };
  // The prompt that shares the most tokens with `tokens`, of which at most `max_tokens` count and
  // the first `n_reused` are there without it. Counts as its use.
  Match Find(std::span<const TokenId> tokens, int64_t n_reused, int64_t max_tokens);

  // Gives up the prompt that was used longest ago, and with it the references to its pages. False
  // if there is none.
  bool DropOldest();

 private:
  int64_t UsableTokens(const ParkedPrompt& prompt, std::span<const TokenId> tokens,
                       int64_t max_tokens) const;

  int64_t max_bytes_;
  std::vector<int64_t> windows_;
  int page_slots_;
  int64_t row_floats_;
  int64_t bytes_ = 0;
  std::list<ParkedPrompt> prompts_;  // front: used last
};

}  // namespace winnow
