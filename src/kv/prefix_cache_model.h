// What PrefixCache should do, in the plainest form: the oracle of kv_history_test.cc.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/hash.h"
#include "kv/page_layout.h"

namespace winnow {

class PrefixCacheModel {
 public:
  // One page at one layer: its payloads [G], and its id, by which references are counted.
  struct Page {
    std::vector<uint64_t> payloads;
    PageId id = kNoPage;
  };
  struct Entry {
    Hash128 previous;
    std::vector<std::optional<Page>> pages;  // [L]
    int64_t used = 0;                        // time of last use
  };

  PrefixCacheModel(std::vector<int64_t> windows, int64_t slots)
      : windows_(std::move(windows)), slots_(slots) {}

  const std::map<Hash128, Entry>& entries() const { return entries_; }

  Entry& Add(const Hash128& hash, const Hash128& previous) {
    Entry& entry = entries_[hash];
    entry.previous = previous;
    entry.pages.resize(windows_.size());
    return entry;
  }

  // The first page is used last.
  void Use(std::span<const Hash128> hashes) {
    for (size_t i = hashes.size(); i-- > 0;) entries_.at(hashes[i]).used = ++now_;
  }

  int64_t UsableRun(std::span<const Hash128> hashes, int64_t max_pages) const {
    int64_t n = std::min<int64_t>(max_pages, static_cast<int64_t>(hashes.size()));
    while (n > 0 && !CanAdopt(hashes, n)) --n;
    return n;
  }

  // The payload of token `t`, which must be resident.
  uint64_t Payload(std::span<const Hash128> hashes, int layer, int64_t t) const {
    return entries_.at(hashes[t / slots_]).pages[layer].value().payloads.at(t % slots_);
  }

  void AddReferences(std::span<int> references) const {
    for (const auto& [hash, entry] : entries_) {
      for (const auto& page : entry.pages) {
        if (page) ++references[page->id];
      }
    }
  }

  // Drops, one at a time, the entry used longest ago among those that nothing continues and that
  // free a page; where there is none, takes a single page out of the entry used longest ago.
  // `references` [pages] counts those of sequences and cache.
  int64_t Evict(int64_t n_pages, std::vector<int> references) {
    int64_t freed = 0;
    while (freed < n_pages) {
      const auto alone = [&](const std::optional<Page>& page) {
        return page && references[page->id] == 1;
      };
      auto oldest = entries_.end();
      auto oldest_end = entries_.end();
      for (auto it = entries_.begin(); it != entries_.end(); ++it) {
        if (std::ranges::none_of(it->second.pages, alone)) continue;
        const auto older = [&](auto best) {
          return best == entries_.end() || it->second.used < best->second.used;
        };
        if (older(oldest)) oldest = it;
        if (older(oldest_end) && IsEnd(it->first)) oldest_end = it;
      }
      if (oldest == entries_.end()) break;
      if (oldest_end != entries_.end()) {
        freed += std::ranges::count_if(oldest_end->second.pages, alone);
        for (const auto& page : oldest_end->second.pages) {
          if (page) --references[page->id];
        }
        entries_.erase(oldest_end);
      } else {
        std::ranges::find_if(oldest->second.pages, alone)->reset();
        ++freed;
      }
    }
    return freed;
  }

 private:
  // The definition, token by token: a query at n * G sees those after n * G - window.
  bool CanAdopt(std::span<const Hash128> hashes, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) {
      if (!entries_.contains(hashes[i])) return false;
    }
    for (size_t layer = 0; layer < windows_.size(); ++layer) {
      for (int64_t t = 0; t < n * slots_; ++t) {
        const bool seen = windows_[layer] == 0 || t > n * slots_ - windows_[layer];
        if (seen && !entries_.at(hashes[t / slots_]).pages[layer]) return false;
      }
    }
    return true;
  }

  bool IsEnd(const Hash128& hash) const {
    return std::ranges::none_of(entries_,
                                [&](const auto& other) { return other.second.previous == hash; });
  }

  std::vector<int64_t> windows_;
  int64_t slots_;
  std::map<Hash128, Entry> entries_;
  int64_t now_ = 0;
};

}  // namespace winnow
