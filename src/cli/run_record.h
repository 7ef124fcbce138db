// What one answered prompt is reported as: the JSON record (docs/json.md) and the closing table.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/generation.h"
#include "cli/prune_summary.h"
#include "engine/request.h"
#include "ledger/ledger.h"
#include "text/document.h"
#include "text/prompt.h"

namespace winnow {

// llama.cpp on the same prompt tokens, in the same process, after Winnow.
struct PeerRecord {
  int64_t prompt_tokens = 0;
  double ttft_seconds = 0;
  int64_t decode_steps = 0;
  double decode_seconds = 0;
  // Its weights and its context's buffers as it allocated them: both engines live in one process,
  // so the peer has no resident set of its own to measure.
  int64_t buffer_bytes = 0;
  int64_t kv_bytes = 0;
};

struct RunRecord {
  std::string model;  // path
  std::string arm;    // as asked for
  AutoArm auto_arm;   // what `auto` could have been
  bool used_chat_template = false;
  std::vector<DocumentUse> documents;
  std::vector<SkippedFile> skipped;
  RequestResult result;
  uint64_t peak_rss_bytes = 0;  // before the peer was loaded
  std::optional<PeerRecord> peer;
  std::string peer_error;  // why there is none although it was asked for
};

// The record of a finished request, which ends with `prompt`; documents skipped and a peer are the
// caller's to add.
RunRecord MakeRecord(const LoadedModel& loaded, const GenerationFlags& flags, const Prompt& prompt,
                     RequestResult result);

// What prefill did, and the record of pruning in it where the arm prunes.
nlohmann::ordered_json PrefillJson(const RequestLedger& ledger,
                                   LedgerDetail detail = LedgerDetail::kSummary);

// Schema winnow.run/1, without "schema" itself (a chat's turn holds the same keys).
nlohmann::ordered_json ToJson(const RunRecord& record,
                              LedgerDetail detail = LedgerDetail::kSummary);

// The table that ends `winnow run`: one column, or two and their ratio with a peer; below it, if
// the answer did not read everything, what was read and how sure that was.
std::string FormatTable(const RunRecord& record);

}  // namespace winnow
