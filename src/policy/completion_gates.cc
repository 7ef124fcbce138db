#include "policy/completion_gates.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/error.h"

namespace winnow {
namespace {

constexpr int kMostLayers = 4096;
constexpr int kMostHeads = 4096;

// A number from `low` to `high` that makes up all of `text`, or -1.
int Number(std::string_view text, int low, int high) {
  int value = -1;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end && value >= low && value <= high ? value : -1;
}

}  // namespace

CompletionGates::CompletionGates(std::span<const CompletionGate> off) {
  for (const CompletionGate& gate : off) {
    const auto layers = static_cast<size_t>(gate.layer) + 1;
    if (off_.size() < layers) off_.resize(layers);
    Layer& layer = off_[gate.layer];
    if (gate.kv_head < 0) {
      layer.all = true;
      continue;
    }
    const auto heads = static_cast<size_t>(gate.kv_head) + 1;
    if (layer.heads.size() < heads) layer.heads.resize(heads);
    layer.heads[gate.kv_head] = true;
  }
}

std::vector<CompletionGate> ParseGates(std::string_view policy, std::string_view text) {
  std::vector<CompletionGate> gates;
  std::string_view rest = text;
  while (true) {
    const size_t plus = rest.find('+');
    const std::string_view part = rest.substr(0, plus);
    const size_t dot = part.find('.');
    CompletionGate gate;
    gate.layer = Number(part.substr(0, dot), 1, kMostLayers) - 1;
    if (dot != std::string_view::npos) {
      gate.kv_head = Number(part.substr(dot + 1), 0, kMostHeads);
    }
    if (gate.layer < 0 || (dot != std::string_view::npos && gate.kv_head < 0)) {
      Throw(ErrorKind::kUsage,
            "{}: off takes layers from 1, or layer.head, joined by '+', such as 1+4.0+4.2, not "
            "'{}'",
            policy, text);
    }
    gates.push_back(gate);
    if (plus == std::string_view::npos) break;
    rest.remove_prefix(plus + 1);
  }
  std::sort(gates.begin(), gates.end());
  gates.erase(std::unique(gates.begin(), gates.end()), gates.end());
  return gates;
}

std::string FormatGates(std::span<const CompletionGate> gates) {
  std::string text;
  for (const CompletionGate& gate : gates) {
    if (!text.empty()) text += '+';
    text += fmt::format("{}", gate.layer + 1);
    if (gate.kv_head >= 0) text += fmt::format(".{}", gate.kv_head);
  }
  return text;
}

}  // namespace winnow
