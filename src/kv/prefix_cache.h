// Which page-aligned prefixes are resident, by content hash, and which of them to give up first.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/hash.h"
#include "kv/sequence_kv.h"

namespace winnow {

// One page of tokens at every layer. `pages[layer]` is kNoPage where a local layer had released it.
class PrefixCache {
 public:
  // `windows[layer]` is the layer's sliding window in tokens, 0 where it is global.
  PrefixCache(PagePool* pool, std::vector<int64_t> windows);
  ~PrefixCache();

  // The chained hash of a full page. It contains the tokens [G], their positions [G], the fingerprint of
  // the arm (and of the pruning) under which they passed the layers below, and the pages before.
  static Hash128 PageHash(const Hash128& previous, std::span<const int32_t> tokens,
                          std::span<const int32_t> positions, uint64_t arm_fingerprint);

  // Adopts into the empty `kv` the longest resident run of `hashes` (one per full page of the prompt),
  // at most `max_pages`, such that every global layer has all its pages and every local layer those its
  // window still needs. Returns the number of pages reused.
  int64_t Adopt(std::span<const Hash128> hashes, int64_t max_pages, SequenceKv* kv);

  // Remembers the first `hashes.size()` pages of `kv`, one reference to each page.
  void Insert(std::span<const Hash128> hashes, const SequenceKv& kv);

  // Gives up the least recently used entries until `n_pages` pages were freed or nothing is left that
  // would free a page. Returns the pages freed.
  int64_t Evict(int64_t n_pages);

  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  // Pages that Evict could free: held by the cache alone.
  int64_t evictable_pages() const;
  void CheckInvariants() const;

 private:
  struct Entry {
    std::vector<PageId> pages;  // [L]
    Hash128 previous;
    int n_children = 0;                  // entries that continue this one
    std::list<Hash128>::iterator place;  // in recency_
  };
  void Drop(std::unordered_map<Hash128, Entry>::iterator entry);

  PagePool* pool_;
  std::vector<int64_t> windows_;
  std::unordered_map<Hash128, Entry> entries_;
  std::list<Hash128> recency_;  // front: used last
};

}  // namespace winnow
