// Reference-counted pages of one layout, out of one reserved range of addresses. Memory is
// committed by the system as pages are first written, so an unused capacity costs nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/page_layout.h"

namespace winnow {

class PagePool {
 public:
  // Room for `capacity_pages` pages. Throws Error(kResource) if the address range cannot be
  // reserved.
  PagePool(const PageLayout& layout, int64_t capacity_pages);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  const PageLayout& layout() const { return layout_; }
  const PageLayout& super_page_layout() const { return super_page_layout_; }
  int64_t capacity_pages() const;
  int64_t free_pages() const;
  int64_t used_pages() const { return capacity_pages() - free_pages(); }

  // A page with one reference, no tokens and undefined contents; kNoPage if none is free.
  PageId TryAllocate();
  void AddRef(PageId page);
  // Drops one reference; the last one frees the page.
  void Release(PageId page);
  int ref_count(PageId page) const;

  // Changes whenever the page is allocated or handed out for writing, and never comes back to an
  // earlier value: who derived something from a page knows by its number and version whether that
  // still holds. [pages]; stays where it is.
  const uint64_t* versions() const { return versions_.data(); }
  // Before a page is written.
  void Touch(PageId page) { ++versions_[page]; }

  // First byte of a page: `layout()` says what lies where.
  std::byte* data(PageId page) { return base_ + static_cast<size_t>(page) * layout_.page_bytes; }
  const std::byte* data(PageId page) const {
    return base_ + static_cast<size_t>(page) * layout_.page_bytes;
  }
  const std::byte* base() const { return base_; }
  // The planes of a page, `layout().side_bytes` long.
  std::byte* side(PageId page) {
    return side_base_ + static_cast<size_t>(page) * layout_.side_bytes;
  }
  const std::byte* side_base() const { return side_base_; }

  // Position IDs of the page's slots, [G]. Stored, not derived: pruning leaves gaps.
  std::span<int32_t> positions(PageId page);
  std::span<const int32_t> positions(PageId page) const;

  // Every page is either free once or referenced; free list and counts agree. CHECKs otherwise.
  void CheckInvariants() const;

 private:
  PageLayout layout_;
  PageLayout super_page_layout_;
  std::byte* base_ = nullptr;
  std::byte* side_base_ = nullptr;
  size_t reserved_bytes_ = 0;
  std::vector<int32_t> ref_counts_;
  std::vector<uint64_t> versions_;
  std::vector<int32_t> positions_;  // [pages][G], grown in place as pages are first used
  std::vector<PageId> free_list_;   // LIFO, so that few distinct pages are touched
  PageId next_unused_ = 0;          // pages from here on were never allocated
};

}  // namespace winnow
