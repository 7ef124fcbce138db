#include "engine/handover.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "policy/prefill/payload.h"

namespace winnow {
namespace {

using nlohmann::ordered_json;

// Reads a note key by key; whatever is wrong with it is an error of the file.
class NoteReader {
 public:
  NoteReader(const std::string& note, const std::string& path)
      : path_(path), json_(ordered_json::parse(note, nullptr, /*allow_exceptions=*/false)) {
    if (!json_.is_object()) Refuse("it is no JSON object");
  }

  int64_t Integer(const char* key, int64_t low, int64_t high) const {
    const ordered_json& value = At(key);
    // A larger number than int64_t holds is unsigned, and turns negative here.
    const int64_t n = value.is_number_integer() ? value.get<int64_t>() : low - 1;
    if (n < low || n > high) Refuse(fmt::format("'{}' must be from {} to {}", key, low, high));
    return n;
  }
  bool Flag(const char* key) const {
    if (!At(key).is_boolean()) Refuse(fmt::format("'{}' must be true or false", key));
    return At(key).get<bool>();
  }
  std::string Text(const char* key) const {
    if (!At(key).is_string()) Refuse(fmt::format("'{}' must be a text", key));
    return At(key).get<std::string>();
  }

 private:
  const ordered_json& At(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) Refuse(fmt::format("it has no '{}'", key));
    return *found;
  }
  [[noreturn]] void Refuse(std::string_view reason) const {
    Throw(ErrorKind::kInput, "the KV file {} cannot be used: its note is none of a prefill: {}",
          path_, reason);
  }

  const std::string& path_;
  ordered_json json_;
};

HandoverNote ParseNote(const KvFileInfo& info, const ModelConfig& config, const std::string& path) {
  const int64_t n_tokens = std::ssize(info.header.tokens);
  const NoteReader note(info.header.note, path);
  return {
      .first_token = static_cast<TokenId>(note.Integer("first_token", 0, config.vocabulary - 1)),
      .arm = note.Text("arm"),
      .dense_tokens = note.Integer("dense_tokens", 0, n_tokens),
      .pruned_layer = static_cast<int>(note.Integer("pruned_layer", 0, config.n_layers)),
      .kept_tokens = note.Integer("kept_tokens", 0, n_tokens),
      .drop_kv = note.Flag("drop_kv")};
}

// The first tokens of the prompt that lie in every layer where a prefill without pruning puts them.
int64_t UnmovedTokens(const KvFileInfo& info) {
  int64_t unmoved = std::ssize(info.header.tokens);
  for (const KvFileInfo::Layer& layer : info.layers) {
    int64_t end = layer.n_released;
    // Nothing is known of released tokens but that they came before this one.
    if (layer.positions.empty() || layer.positions.front() != end) return 0;
    for (const int32_t position : layer.positions) {
      if (position != end) break;
      ++end;
    }
    unmoved = std::min(unmoved, end);
  }
  return unmoved;
}

void CheckResident(const KvFileInfo& info, const ModelConfig& config, const std::string& path) {
  for (int layer = 0; layer < config.n_layers; ++layer) {
    const KvFileInfo::Layer& from = info.layers[layer];
    const int64_t window = config.layers[layer].window;
    const int64_t may_lack = window == 0 ? 0 : std::max<int64_t>(0, from.n_tokens - window);
    if (from.n_released <= may_lack) continue;
    Throw(
        ErrorKind::kInput,
        "the KV file {} cannot be used: layer {} lacks its first {} tokens, and decode reads them",
        path, layer + 1, from.n_released);
  }
}

// Pages of each layer that hold a prompt once its prefill is over.
std::vector<int64_t> PagesOf(const HandoverNote& note, int64_t n_tokens, const ModelConfig& config,
                             int64_t slots) {
  std::vector<int64_t> pages(config.layers.size());
  PagesAfterPruning(slots, n_tokens, note.kept_tokens, note.pruned_layer, note.drop_kv, pages);
  for (size_t layer = 0; layer < pages.size(); ++layer) {
    const int64_t window = config.layers[layer].window;
    if (window == 0) continue;
    // Nothing is taken out of a local layer that was read already; what its window has passed was
    // released with a page of slack.
    const auto below = static_cast<int64_t>(layer) < note.pruned_layer;
    const int64_t tokens = below ? n_tokens : note.kept_tokens;
    pages[layer] =
        (tokens + slots - 1) / slots - std::max<int64_t>(0, tokens - window - slots) / slots;
  }
  return pages;
}

}  // namespace

std::string ToText(const HandoverNote& note) {
  const ordered_json json = {
      {"first_token", note.first_token},   {"arm", note.arm},
      {"dense_tokens", note.dense_tokens}, {"pruned_layer", note.pruned_layer},
      {"kept_tokens", note.kept_tokens},   {"drop_kv", note.drop_kv}};
  // An arm may name a file, and a file any bytes.
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

HandoverNote ReadHandover(const KvFileInfo& info, const ModelConfig& config,
                          const std::string& path) {
  CheckResident(info, config, path);
  HandoverNote note = ParseNote(info, config, path);
  note.dense_tokens = std::min(note.dense_tokens, UnmovedTokens(info));
  return note;
}

KvTransfer AccountTransfer(const HandoverNote& note, int64_t n_tokens, const ModelConfig& config,
                           const PageLayout& layout, const KvFileBytes& bytes) {
  KvUnit unit{.head_dim = layout.head_dim, .page_tokens = layout.slots};
  // Of q8_0 without the two bytes that scale 32 values.
  unit.element_bytes = static_cast<int64_t>(layout.row_bytes) / layout.head_dim;
  const auto formula = [&](const HandoverNote& what) {
    return PayloadByLayer(unit, layout.kv_heads, PagesOf(what, n_tokens, config, layout.slots));
  };
  const int64_t of_elements = unit.page_bytes() * layout.kv_heads * bytes.pages;
  return {.pages = bytes.pages,
          .payload_bytes = bytes.payload,
          .scale_bytes = bytes.payload - of_elements,
          .metadata_bytes = bytes.metadata,
          .formula_bytes = formula(note),
          .unpruned_bytes = formula({.kept_tokens = n_tokens})};
}

}  // namespace winnow
