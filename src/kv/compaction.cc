// SequenceKv::Keep: what prefill pruning does to the layers that hold tokens already.
#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "core/check.h"
#include "kv/sequence_kv.h"

namespace winnow {
namespace {

// The first tokens that stay where they are.
int64_t UnmovedTokens(std::span<const int64_t> tokens) {
  int64_t n = 0;
  while (n < std::ssize(tokens) && tokens[n] == n) ++n;
  return n;
}

// Slots [from, from + n) of one page to [to, to + n) of another, or of the same further to the
// front.
void CopySlots(PagePool* pool, PageId from_page, int64_t from, PageId to_page, int64_t to,
               int64_t n) {
  const PageLayout& layout = pool->layout();
  const std::byte* const source = pool->data(from_page) + from * layout.row_bytes;
  std::byte* const target = pool->data(to_page) + to * layout.row_bytes;
  for (int head = 0; head < layout.kv_heads; ++head) {
    for (const size_t offset : {layout.KeyOffset(head), layout.ValueOffset(head)}) {
      std::memmove(target + offset, source + offset, n * layout.row_bytes);
    }
  }
  const auto positions = std::as_const(*pool).positions(from_page).subspan(from, n);
  std::ranges::copy(positions, pool->positions(to_page).begin() + to);
}

}  // namespace

int64_t SequenceKv::PagesToKeep(int layer, std::span<const int64_t> tokens) const {
  const Layer& l = at(layer);
  const auto n = std::ssize(tokens);
  for (int64_t i = 0; i < n; ++i) {
    WINNOW_CHECK(
        tokens[i] >= (i == 0 ? first_resident(layer) : tokens[i - 1] + 1) && tokens[i] < l.n_tokens,
        "token {} after {} others, of [{}, {})", tokens[i], i, first_resident(layer), l.n_tokens);
  }
  const int64_t unmoved = UnmovedTokens(tokens);
  if (unmoved == n) return 0;
  const int64_t slots = pool_->layout().slots;
  return std::count_if(l.pages.begin() + unmoved / slots, l.pages.begin() + (n + slots - 1) / slots,
                       [&](PageId page) { return page == kNoPage || pool_->ref_count(page) > 1; });
}

std::optional<int64_t> SequenceKv::Keep(int layer, std::span<const int64_t> tokens) {
  Layer& l = at(layer);
  if (PagesToKeep(layer, tokens) > pool_->free_pages()) return std::nullopt;
  const auto n = std::ssize(tokens);
  const int64_t unmoved = UnmovedTokens(tokens);
  if (unmoved == n) {
    Truncate(layer, n);
    return n;
  }
  const int64_t slots = pool_->layout().slots;
  const int64_t first_page = unmoved / slots;
  const std::vector<PageId> old_pages = l.pages;  // all that can throw
  for (int64_t page = first_page; page * slots < n; ++page) {
    PageId& target = l.pages[page];
    const bool own = target != kNoPage && pool_->ref_count(target) == 1;
    if (own) {
      pool_->Touch(target);
    } else {
      target = pool_->TryAllocate();
    }
    // No token moves back, so in a page of its own the sequence overwrites only what was moved on
    // or is dropped.
    const int64_t end = std::min(n, (page + 1) * slots);
    for (int64_t i = page * slots; i < end;) {
      const int64_t from = tokens[i] % slots;
      int64_t run = 1;
      while (i + run < end && from + run < slots && tokens[i + run] == tokens[i] + run) ++run;
      CopySlots(pool_, old_pages[tokens[i] / slots], from, target, i % slots, run);
      i += run;
    }
  }
  // Pages of others, and those past the end, are given up only now: later tokens were read there.
  for (int64_t page = first_page; page < std::ssize(old_pages); ++page) {
    const bool still_there = page * slots < n && l.pages[page] == old_pages[page];
    if (!still_there && old_pages[page] != kNoPage) pool_->Release(old_pages[page]);
  }
  l.pages.resize((n + slots - 1) / slots);
  l.n_tokens = n;
  l.n_released_pages = 0;
  const auto n_super_pages = static_cast<size_t>(first_page / kSuperPagePages);
  if (l.super_pages.size() > n_super_pages) l.super_pages.resize(n_super_pages);
  return first_page * slots;
}

}  // namespace winnow
