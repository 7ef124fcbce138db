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
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The chained hash of a full page. It contains the tokens [G], their positions [G], the
  // fingerprint of the arm (and of the pruning) under which they passed the layers below, and the
  // pages before.
  static Hash128 PageHash(const Hash128& previous, std::span<const int32_t> tokens,
                          std::span<const int32_t> positions, uint64_t arm_fingerprint);

  // How many pages Adopt would reuse.
  int64_t Match(std::span<const Hash128> hashes, int64_t max_pages) const {
    return LongestUsableRun(hashes, max_pages);
  }

  // Adopts into the empty `kv` the longest resident run of `hashes` (one per full page of the
  // prompt), at most `max_pages`, such that every global layer has all its pages and every local
  // layer those its window still needs. Returns the number of pages reused.
  int64_t Adopt(std::span<const Hash128> hashes, int64_t max_pages, SequenceKv* kv);

  // Remembers the first `hashes.size()` pages of `kv`, one reference to each page. An entry that is
  // there already becomes the one used last, keeps its pages and gets only those that it lacked.
  void Insert(std::span<const Hash128> hashes, const SequenceKv& kv);

  // Frees up to `n_pages` pages, all of them if evictable_pages() allows: drops entries, ends of
  // chains first and of these the one used longest ago; spares those whose pages are all in use
  // elsewhere, and takes pages out of the middle of chains where nothing else is left. Returns the
  // pages freed.
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
  using Entries = std::unordered_map<Hash128, Entry>;

  int64_t LongestUsableRun(std::span<const Hash128> hashes, int64_t max_pages) const;
  // A new entry without pages that continues `parent` (null: begins a prompt).
  Entries::iterator AddEntry(const Hash128& hash, Entry* parent);
  // Marks a chain as used last, its first page foremost: a parent is always ahead of its children.
  void Touch(std::span<const Hash128> hashes);
  // Pages that dropping the entry would free now.
  int64_t PagesHeldAlone(const Entry& entry) const;
  // Drops entries without children, used longest ago first, until `n_pages` pages were freed;
  // spares those that would free nothing. Returns the pages freed.
  int64_t DropLeaves(int64_t n_pages);
  // Takes pages that nobody else holds out of entries that stay, used longest ago first: what is
  // left when all ends of chains are in use (local layers that a sequence has released and the
  // cache has not). Dropping the ends instead would give up more for the same pages. Returns the
  // pages freed.
  int64_t StripPages(int64_t n_pages);
  void Drop(Entries::iterator entry);
  void ReleasePages(const Entry& entry);

  PagePool* pool_;
  std::vector<int64_t> windows_;
  Entries entries_;
  std::list<Hash128> recency_;  // front: used last; a parent before its children
};

}  // namespace winnow
