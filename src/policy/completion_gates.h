// Where completion abstains: (layer, KV head) pairs whose unread part is dropped, since estimating
// it there makes the final distribution no better.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace winnow {

struct CompletionGate {
  int layer = 0;     // from 0
  int kv_head = -1;  // -1: all of them
  bool operator==(const CompletionGate&) const = default;
  bool operator<(const CompletionGate& other) const {
    return std::tie(layer, kv_head) < std::tie(other.layer, other.kv_head);
  }
};

class CompletionGates {
 public:
  CompletionGates() = default;  // completes everywhere
  explicit CompletionGates(std::span<const CompletionGate> off);

  bool Completes(int layer, int kv_head) const {
    return layer >= static_cast<int>(off_.size()) || !off_[layer].Has(kv_head);
  }
  bool empty() const { return off_.empty(); }

 private:
  struct Layer {
    bool all = false;
    std::vector<bool> heads;
    bool Has(int head) const {
      return all || (head < static_cast<int>(heads.size()) && heads[head]);
    }
  };
  std::vector<Layer> off_;
};

// As arms write them, "1+4.0+4.2": layer 1 as a whole, and KV heads 0 and 2 of layer 4. Layers
// count from 1, heads from 0. Parsing throws Error(kUsage) that names `policy`.
std::vector<CompletionGate> ParseGates(std::string_view policy, std::string_view text);
std::string FormatGates(std::span<const CompletionGate> gates);

}  // namespace winnow
