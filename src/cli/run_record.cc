#include "cli/run_record.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "cli/output.h"
#include "core/byte_size.h"
#include "core/memory.h"
#include "ledger/ledger.h"

namespace winnow {
namespace {

using nlohmann::ordered_json;

ordered_json MillisecondsOrNull(double seconds, bool known) {
  return known ? ordered_json(seconds * 1e3) : ordered_json(nullptr);
}

ordered_json TextOrNull(const std::string& text) {
  return text.empty() ? ordered_json(nullptr) : ordered_json(text);
}

ordered_json DocumentsJson(const std::vector<DocumentUse>& documents) {
  ordered_json list = ordered_json::array();
  for (const DocumentUse& document : documents) {
    list.push_back({{"id", document.id},
                    {"tokens", document.tokens},
                    {"kept", document.kept},
                    {"read", document.kept},
                    {"mass", std::isnan(document.mass) ? ordered_json(nullptr)
                                                       : ordered_json(document.mass)}});
  }
  return list;
}

// Null where nothing was measured, or it never pays.
ordered_json BreakEvenJson(const AutoArm& automatic) {
  const bool known = automatic.arm != "dense" && automatic.break_even_tokens != kNeverPays;
  return known ? ordered_json(automatic.break_even_tokens) : ordered_json(nullptr);
}

ordered_json PeerJson(const PeerRecord& peer) {
  const bool decoded = peer.decode_steps > 0;
  return {{"engine", "llama.cpp"},
          {"prompt_tokens", peer.prompt_tokens},
          {"ttft_ms", peer.ttft_seconds * 1e3},
          {"tpot_ms", MillisecondsOrNull(peer.decode_seconds /
                                             static_cast<double>(decoded ? peer.decode_steps : 1),
                                         decoded)},
          {"decode_steps", peer.decode_steps},
          {"kv_bytes", peer.kv_bytes},
          {"buffer_bytes", peer.buffer_bytes}};
}

ordered_json KvFileJson(const KvTransfer& t) {
  return {{"path", t.path},
          {"pages", t.pages},
          {"payload_bytes", t.payload_bytes},
          {"scale_bytes", t.scale_bytes},
          {"metadata_bytes", t.metadata_bytes},
          {"payload_formula_bytes", t.formula_bytes},
          {"payload_unpruned_bytes", t.unpruned_bytes},
          {"seconds", t.seconds}};
}

struct Row {
  std::string name;
  std::string ours;
  std::string peer;
  std::string ratio;
};

std::string Ratio(double peer, double ours) {
  return ours > 0 && peer > 0 ? fmt::format("{:.2f} x", peer / ours) : "";
}

std::vector<Row> Rows(const RunRecord& record) {
  const RequestResult& result = record.result;
  const PeerRecord peer = record.peer.value_or(PeerRecord{});
  const double tpot = result.SecondsPerToken();
  const double peer_tpot =
      peer.decode_steps > 0 ? peer.decode_seconds / static_cast<double>(peer.decode_steps) : 0;
  const auto count = [](int64_t n) { return n > 0 ? FormatCount(n) : std::string("-"); };
  const auto seconds = [](double s) { return s > 0 ? FormatSeconds(s) : std::string("-"); };
  const auto per_token = [](double s) {
    return s > 0 ? fmt::format("{:.1f}", s * 1e3) : std::string("-");
  };
  std::vector<Row> rows = {
      {"prompt tokens", count(result.prompt_tokens), count(peer.prompt_tokens), ""},
      {"time to first token", seconds(result.ttft_seconds), seconds(peer.ttft_seconds),
       Ratio(peer.ttft_seconds, result.ttft_seconds)},
      {"ms a token", per_token(tpot), per_token(peer_tpot), Ratio(peer_tpot, tpot)},
      {"memory", FormatBytes(static_cast<int64_t>(record.peak_rss_bytes)),
       FormatBytes(peer.buffer_bytes), ""},
      {"of it KV", FormatBytes(result.kv_bytes), FormatBytes(peer.kv_bytes), ""},
  };
  if (result.reused_tokens > 0) {
    rows.insert(rows.begin() + 1, {"of them reused", count(result.reused_tokens), "", ""});
  }
  return rows;
}

std::string Percent(double part, double whole) {
  return fmt::format("{:.3g} %", 100 * part / whole);
}

// Of the sparse layers: what was read, and what is known of the rest. Estimates and bounds are
// called what they are.
std::string SparseLine(const AttentionAccount& a) {
  if (a.layers_sparse == 0) return "";
  std::string line = fmt::format(
      "decode read {} of the tokens, {} of the bytes",
      Percent(static_cast<double>(a.tokens_read), static_cast<double>(a.tokens_resident)),
      Percent(static_cast<double>(a.bytes_read), static_cast<double>(a.bytes_dense)));
  if (a.mass_heads > 0) {
    const auto heads = static_cast<double>(a.mass_heads);
    line += fmt::format("; attention mass left out {}, stood for {} (estimates)",
                        Percent(a.mass_dropped, heads), Percent(a.mass_estimated, heads));
  }
  const StatementAccount& statements = a.statements;
  if (statements.intervals > 0) {
    const auto n = static_cast<double>(statements.intervals);
    line += fmt::format("; unread mass bounded by {} (mean), {} of the bounds vacuous",
                        Percent(statements.hi, n),
                        Percent(static_cast<double>(statements.AllVacuous()), n));
  }
  if (const OutputErrorAccount& errors = a.output_errors; errors.bounds > 0) {
    const auto n = static_cast<double>(errors.bounds);
    line += fmt::format("; error of the outputs at most {} of their norm (mean), {} vacuous",
                        Percent(errors.relative, n),
                        Percent(static_cast<double>(errors.AllVacuous()), n));
  }
  if (a.mass_heads == 0 && statements.intervals == 0 && a.tokens_read < a.tokens_resident) {
    line += "; the unread mass is not known";
  }
  return line + "\n";
}

std::string KvFileLine(const KvTransfer& t) {
  return fmt::format(
      "KV file {}: {} of keys and values in {} pages (by the formula {}, unpruned {}), {} of "
      "metadata, {:.1f} ms\n",
      t.path, FormatBytes(t.payload_bytes - t.scale_bytes), FormatCount(t.pages),
      FormatBytes(t.formula_bytes), FormatBytes(t.unpruned_bytes),
      FormatBytes(t.metadata_bytes + t.scale_bytes), t.seconds * 1e3);
}

}  // namespace

ordered_json PrefillJson(const RequestLedger& ledger, LedgerDetail detail) {
  ordered_json json = ToJson(ledger.prefill, detail);
  if (ledger.pruning != nullptr) json["pruning"] = ToJson(*ledger.pruning, detail);
  return json;
}

RunRecord MakeRecord(const LoadedModel& loaded, const GenerationFlags& flags, const Prompt& prompt,
                     RequestResult result) {
  const int64_t first_token = result.prompt_tokens - std::ssize(prompt.tokens);
  std::vector<DocumentUse> documents =
      UseOfDocuments(prompt, first_token, result.ledger.pruning.get());
  // A layer at a time: no document has passed all of them before the first token.
  if (result.tokens.empty()) {
    for (DocumentUse& document : documents) document.kept = 0;
  }
  return {.model = loaded.name,
          .arm = flags.arm,
          .auto_arm = loaded.auto_arm,
          .used_chat_template = prompt.used_chat_template,
          .documents = std::move(documents),
          .result = std::move(result),
          .peak_rss_bytes = PeakRssBytes()};
}

ordered_json ToJson(const RunRecord& record, LedgerDetail detail) {
  const RequestResult& result = record.result;
  ordered_json skipped = ordered_json::array();
  for (const SkippedFile& file : record.skipped) {
    skipped.push_back({{"path", file.path}, {"reason", file.reason}});
  }
  return {{"model", record.model},
          {"arm", record.arm},
          {"arm_resolved", result.arm_resolved},
          {"arm_reason", TextOrNull(result.arm_reason)},
          {"break_even_tokens", BreakEvenJson(record.auto_arm)},
          {"chat_template", record.used_chat_template},
          {"prompt_tokens", result.prompt_tokens},
          {"reused_tokens", result.reused_tokens},
          {"text", result.text},
          {"tokens", result.tokens},
          {"finish_reason", FinishReasonName(result.finish_reason)},
          {"error", TextOrNull(result.error)},
          {"ttft_ms", MillisecondsOrNull(result.ttft_seconds, !result.tokens.empty())},
          {"tpot_ms", MillisecondsOrNull(result.SecondsPerToken(), result.tokens.size() >= 2)},
          {"kv_bytes", result.kv_bytes},
          {"peak_rss_bytes", record.peak_rss_bytes},
          {"documents", DocumentsJson(record.documents)},
          {"skipped", std::move(skipped)},
          {"prefill", PrefillJson(result.ledger, detail)},
          {"decode", ToJson(result.ledger.decode, detail)},
          {"kv_file", result.kv_transfer.has_value() ? KvFileJson(*result.kv_transfer)
                                                     : ordered_json(nullptr)},
          {"peer", record.peer.has_value() ? PeerJson(*record.peer) : ordered_json(nullptr)},
          {"peer_error", TextOrNull(record.peer_error)}};
}

std::string FormatTable(const RunRecord& record) {
  const bool peer = record.peer.has_value();
  std::string table = fmt::format("{:<22}{:>12}", "", "winnow");
  if (peer) table += fmt::format("{:>14}{:>12}", "llama.cpp", "ratio");
  table += '\n';
  for (const Row& row : Rows(record)) {
    table += fmt::format("{:<22}{:>12}", row.name, row.ours);
    if (peer) table += fmt::format("{:>14}{:>12}", row.peer, row.ratio);
    table.erase(table.find_last_not_of(' ') + 1);
    table += '\n';
  }
  if (peer) {
    table +=
        "ratio: llama.cpp's time over winnow's, same prompt tokens, same threads, one after the "
        "other\n"
        "memory: winnow's is the highest resident set of the process before llama.cpp was loaded,\n"
        "llama.cpp's the weights and buffers that it allocated\n";
  }
  if (record.result.ledger.pruning != nullptr) {
    table += FormatPruning(*record.result.ledger.pruning, record.documents);
  }
  if (!record.result.arm_reason.empty()) {
    table += fmt::format("arm: {} ({})\n", record.result.arm_resolved, record.result.arm_reason);
  }
  if (record.result.kv_transfer.has_value()) table += KvFileLine(*record.result.kv_transfer);
  return table + SparseLine(record.result.ledger.decode.attention);
}

}  // namespace winnow
