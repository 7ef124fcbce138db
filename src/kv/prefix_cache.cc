#include "kv/prefix_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/check.h"

namespace winnow {
namespace {

// The first of `n_pages` full pages that a query right behind them still reads in a layer of this
// window: a query at index i sees the tokens (i - window, i].
int64_t FirstPageSeen(int64_t n_pages, int64_t slots, int64_t window) {
  if (window == 0) return 0;
  const int64_t n_tokens = n_pages * slots;
  return std::max<int64_t>(0, n_tokens - window + 1) / slots;
}

}  // namespace

PrefixCache::PrefixCache(PagePool* pool, std::vector<int64_t> windows)
    : pool_(pool), windows_(std::move(windows)) {
  WINNOW_CHECK(pool != nullptr);
  for (int64_t window : windows_) WINNOW_CHECK(window >= 0, "a window of {} tokens", window);
}

PrefixCache::~PrefixCache() {
  for (const auto& [hash, entry] : entries_) ReleasePages(entry);
}

Hash128 PrefixCache::PageHash(const Hash128& previous, std::span<const int32_t> tokens,
                              std::span<const int32_t> positions, uint64_t arm_fingerprint) {
  WINNOW_CHECK(tokens.size() == positions.size(), "{} tokens at {} positions", tokens.size(),
               positions.size());
  Hash128 hash = HashBytes(std::as_bytes(std::span(&arm_fingerprint, 1)), previous);
  hash = HashBytes(std::as_bytes(tokens), hash);
  return HashBytes(std::as_bytes(positions), hash);
}

int64_t PrefixCache::LongestUsableRun(std::span<const Hash128> hashes, int64_t max_pages) const {
  const int64_t slots = pool_->layout().slots;
  const int64_t limit = std::min(max_pages, static_cast<int64_t>(hashes.size()));
  std::vector<int64_t> first_held(windows_.size(), 0);  // held from here to the page just visited
  int64_t best = 0;
  for (int64_t i = 0; i < limit; ++i) {
    const auto found = entries_.find(hashes[i]);
    if (found == entries_.end()) break;
    bool usable = true;
    for (size_t layer = 0; layer < windows_.size(); ++layer) {
      if (found->second.pages[layer] == kNoPage) first_held[layer] = i + 1;
      usable &= first_held[layer] <= FirstPageSeen(i + 1, slots, windows_[layer]);
    }
    if (usable) best = i + 1;
  }
  return best;
}

int64_t PrefixCache::Adopt(std::span<const Hash128> hashes, int64_t max_pages, SequenceKv* kv) {
  WINNOW_CHECK(kv->n_layers() == static_cast<int>(windows_.size()), "{} layers, not {}",
               kv->n_layers(), windows_.size());
  WINNOW_CHECK(&kv->pool() == pool_);
  const int64_t n = LongestUsableRun(hashes, max_pages);
  if (n == 0) return 0;
  SequenceKv adopted(pool_, kv->n_layers());
  std::vector<PageId> pages(n);
  for (int layer = 0; layer < kv->n_layers(); ++layer) {
    WINNOW_CHECK(kv->n_tokens(layer) == 0, "layer {} has {} tokens", layer, kv->n_tokens(layer));
    std::ranges::fill(pages, kNoPage);
    for (int64_t i = FirstPageSeen(n, pool_->layout().slots, windows_[layer]); i < n; ++i) {
      pages[i] = entries_.find(hashes[i])->second.pages[layer];
    }
    adopted.AdoptPages(layer, pages);
  }
  *kv = std::move(adopted);
  Touch(hashes.first(n));
  return n;
}

void PrefixCache::Insert(std::span<const Hash128> hashes, const SequenceKv& kv) {
  WINNOW_CHECK(kv.n_layers() == static_cast<int>(windows_.size()), "{} layers, not {}",
               kv.n_layers(), windows_.size());
  WINNOW_CHECK(&kv.pool() == pool_);
  const auto n_tokens = static_cast<int64_t>(hashes.size()) * pool_->layout().slots;
  for (int layer = 0; layer < kv.n_layers(); ++layer) {
    WINNOW_CHECK(kv.n_tokens(layer) >= n_tokens, "layer {}: {} of {} tokens", layer,
                 kv.n_tokens(layer), n_tokens);
  }
  Entry* parent = nullptr;
  for (size_t i = 0; i < hashes.size(); ++i) {
    auto found = entries_.find(hashes[i]);
    if (found == entries_.end()) found = AddEntry(hashes[i], parent);
    Entry& entry = found->second;
    WINNOW_CHECK(entry.previous == (i == 0 ? Hash128{} : hashes[i - 1]));
    for (int layer = 0; layer < kv.n_layers(); ++layer) {
      const PageId page = kv.pages(layer)[i];
      if (entry.pages[layer] != kNoPage || page == kNoPage) continue;
      pool_->AddRef(page);
      entry.pages[layer] = page;
    }
    parent = &entry;
  }
  Touch(hashes);
}

PrefixCache::Entries::iterator PrefixCache::AddEntry(const Hash128& hash, Entry* parent) {
  std::list<Hash128> place{hash};
  const Entry entry{.pages = std::vector<PageId>(windows_.size(), kNoPage),
                    .previous = parent != nullptr ? *parent->place : Hash128{},
                    .place = place.begin()};
  const auto added = entries_.emplace(hash, entry).first;
  // Nothing below throws. Just behind its parent, until Touch moves both.
  recency_.splice(parent != nullptr ? std::next(parent->place) : recency_.begin(), place);
  if (parent != nullptr) ++parent->n_children;
  return added;
}

void PrefixCache::Touch(std::span<const Hash128> hashes) {
  for (size_t i = hashes.size(); i-- > 0;) {
    recency_.splice(recency_.begin(), recency_, entries_.find(hashes[i])->second.place);
  }
}

int64_t PrefixCache::PagesHeldAlone(const Entry& entry) const {
  return std::ranges::count_if(
      entry.pages, [&](PageId page) { return page != kNoPage && pool_->ref_count(page) == 1; });
}

int64_t PrefixCache::Evict(int64_t n_pages) {
  const int64_t freed = DropLeaves(n_pages);
  return freed < n_pages ? freed + StripPages(n_pages - freed) : freed;
}

int64_t PrefixCache::DropLeaves(int64_t n_pages) {
  int64_t freed = 0;
  // A parent is always nearer to the front than its children, so one walk meets every entry after
  // all entries that continue it.
  for (auto place = recency_.end(); place != recency_.begin() && freed < n_pages;) {
    const auto entry = entries_.find(*std::prev(place));
    const int64_t n_alone = PagesHeldAlone(entry->second);
    if (entry->second.n_children > 0 || n_alone == 0) {
      --place;
      continue;
    }
    freed += n_alone;
    Drop(entry);  // erases the node before `place`
  }
  return freed;
}

int64_t PrefixCache::StripPages(int64_t n_pages) {
  int64_t freed = 0;
  for (auto hash = recency_.rbegin(); hash != recency_.rend() && freed < n_pages; ++hash) {
    for (PageId& page : entries_.find(*hash)->second.pages) {
      if (page == kNoPage || pool_->ref_count(page) > 1 || freed == n_pages) continue;
      pool_->Release(std::exchange(page, kNoPage));
      ++freed;
    }
  }
  return freed;
}

void PrefixCache::Drop(Entries::iterator entry) {
  ReleasePages(entry->second);
  const auto parent = entries_.find(entry->second.previous);
  if (parent != entries_.end()) --parent->second.n_children;
  recency_.erase(entry->second.place);
  entries_.erase(entry);
}

void PrefixCache::ReleasePages(const Entry& entry) {
  for (PageId page : entry.pages) {
    if (page != kNoPage) pool_->Release(page);
  }
}

int64_t PrefixCache::evictable_pages() const {
  int64_t n = 0;
  for (const auto& [hash, entry] : entries_) n += PagesHeldAlone(entry);
  return n;
}

void PrefixCache::CheckInvariants() const {
  WINNOW_CHECK(recency_.size() == entries_.size());
  std::unordered_map<Hash128, int> n_children;
  for (const Hash128& hash : recency_) {
    const auto found = entries_.find(hash);
    WINNOW_CHECK(found != entries_.end() && *found->second.place == hash);
    const Entry& entry = found->second;
    WINNOW_CHECK(entry.pages.size() == windows_.size());
    WINNOW_CHECK(n_children.emplace(hash, 0).second, "{} is listed twice", hash.Hex());
    if (entry.previous != Hash128{}) {
      const auto parent = n_children.find(entry.previous);
      WINNOW_CHECK(parent != n_children.end(), "{} is not behind its parent", hash.Hex());
      ++parent->second;
    }
    for (PageId page : entry.pages) {
      WINNOW_CHECK(page == kNoPage || pool_->ref_count(page) > 0, "page {} is free", page);
    }
  }
  for (const auto& [hash, entry] : entries_) {
    WINNOW_CHECK(entry.n_children == n_children.at(hash), "{} has {} children, not {}", hash.Hex(),
                 n_children.at(hash), entry.n_children);
  }
}

}  // namespace winnow
