// What a prefill process tells a decode process beside the pages (the note of a KV file), and what
// the hand-over cost against the payload formula (EntroPrefill 8.2).
#pragma once

#include <cstdint>
#include <string>

#include "engine/request.h"
#include "kv/kv_file.h"
#include "model/config.h"

namespace winnow {

struct HandoverNote {
  TokenId first_token = 0;  // drawn after the prompt
  std::string arm;          // that the prompt was read under, resolved
  // Of the prompt, the first tokens whose keys and values are those of a dense prefill.
  int64_t dense_tokens = 0;
  int pruned_layer = 0;     // from 1: the last one that all tokens passed; 0: nothing was dropped
  int64_t kept_tokens = 0;  // that the layers above were given; without pruning all
  bool drop_kv = false;     // dropped tokens were also taken out of the layers below
  bool operator==(const HandoverNote&) const = default;
};

// As JSON.
std::string ToText(const HandoverNote& note);

// The note of a file of this model's layers, with as many `dense_tokens` as lie in every layer
// where a dense prefill puts them. Throws Error(kInput) that names the file if it has no such note,
// or if a layer lacks tokens that decode would read: released ones of a global layer, or of a local
// layer's window.
HandoverNote ReadHandover(const KvFileInfo& info, const ModelConfig& config,
                          const std::string& path);

// What the transfer of a prompt of `n_tokens` tokens took, next to the formula (by layer, with all
// KV heads of a page) for what the note says of it and for a prompt of which nothing is dropped. A
// local layer counts with the pages that its window leaves resident. Path and time are the caller's
// to add.
KvTransfer AccountTransfer(const HandoverNote& note, int64_t n_tokens, const ModelConfig& config,
                           const PageLayout& layout, const KvFileBytes& bytes);

}  // namespace winnow
