// The keys and values of one sequence: a page table per layer over a shared pool.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/tensor_view.h"
#include "kv/page_pool.h"

namespace winnow {

// Which tokens of one layer an attention call may read, and where they lie. Token i of the layer is
// slot i % G of pages[i / G]; entries of released pages are kNoPage and must not be read.
struct PagedKv {
  const PageLayout* layout = nullptr;
  const std::byte* base = nullptr;       // PagePool::base()
  const std::byte* side_base = nullptr;  // PagePool::side_base()
  const uint64_t* versions = nullptr;    // PagePool::versions()
  std::span<const PageId> pages;
  int64_t n_tokens = 0;

  // The keys (values) of `head` in the page that holds token `page_index * G`: [G][D] rows.
  const std::byte* Keys(int64_t page_index, int head) const {
    return base + static_cast<size_t>(pages[page_index]) * layout->page_bytes +
           layout->KeyOffset(head);
  }
  const std::byte* Values(int64_t page_index, int head) const {
    return base + static_cast<size_t>(pages[page_index]) * layout->page_bytes +
           layout->ValueOffset(head);
  }
  // A plane of a full page.
  const std::byte* PlaneOf(Plane plane, int64_t page_index, int head) const {
    return side_base + static_cast<size_t>(pages[page_index]) * layout->side_bytes +
           layout->PlaneOffset(plane, head);
  }
};

class SequenceKv {
 public:
  // `pool` outlives the sequence. A sequence that was moved from has no layers.
  SequenceKv(PagePool* pool, int n_layers);
  ~SequenceKv();
  SequenceKv(SequenceKv&&) noexcept;
  SequenceKv& operator=(SequenceKv&&) noexcept;

  const PagePool& pool() const { return *pool_; }
  int n_layers() const { return static_cast<int>(layers_.size()); }
  // Tokens of this layer, released ones included. Layers may differ (layer-major prefill, pruning).
  int64_t n_tokens(int layer) const { return layers_[layer].n_tokens; }
  // Tokens before this one were released (local layers); a multiple of G.
  int64_t first_resident(int layer) const;

  // A second sequence with the same contents, sharing all pages.
  SequenceKv Fork() const;

  // How many pages `Append(layer, n)` would allocate now, copies on write included.
  int64_t PagesNeeded(int layer, int64_t n) const;

  // Adds `n` tokens with undefined contents and the given positions, [n], strictly increasing and
  // above every earlier one of the layer. A shared last page is copied first. Returns false, and
  // changes nothing, if the pool has too few pages.
  bool Append(int layer, std::span<const int32_t> positions);

  // Drops the tokens from `n_tokens` on (rollback); pages that become empty are released. CHECKs
  // that the layer is then empty or ends at or after `first_resident`.
  void Truncate(int layer, int64_t n_tokens);

  // Releases the whole pages before token `first` (a local layer whose window has passed them).
  void ReleaseBefore(int layer, int64_t first);

  // Starts this layer, which must be empty, with full pages that somebody else holds too (prefix
  // reuse). kNoPage entries, only at the front, stand for pages that were released.
  void AdoptPages(int layer, std::span<const PageId> pages);

  PagedKv View(int layer) const;
  std::span<const PageId> pages(int layer) const { return layers_[layer].pages; }
  int32_t position(int layer, int64_t token) const;

  // Page of `token` for writing; CHECKs that nobody shares it.
  std::byte* WritablePage(int layer, int64_t token);
  // The planes of page `page_index`, for writing. Whoever shares the page shares them: they follow
  // from its keys and values, so writing them again changes nothing.
  std::byte* Planes(int layer, int64_t page_index);

  // Every kSuperPagePages full pages from the first are a super-page, whose summaries the sequence
  // keeps for itself: they follow from those of the pages, which may be shared. The view has the
  // planes of one page for each (PagePool::super_page_layout) and no keys or values.
  PagedKv SuperPages(int layer) const;
  // The planes of one more super-page, for writing. CHECKs that its pages are full and resident.
  std::byte* AddSuperPage(int layer);

  void Clear();
  int64_t allocated_pages() const;  // pages this sequence refers to, shared ones included

  // Counts, positions and references agree. CHECKs otherwise.
  void CheckInvariants() const;

 private:
  struct Layer {
    std::vector<PageId> pages;
    int64_t n_tokens = 0;
    int64_t n_released_pages = 0;
    std::vector<PageId> super_pages;     // 0, 1, …
    std::vector<std::byte> super_sides;  // of each, the planes
  };
  const Layer& at(int layer) const;
  Layer& at(int layer);
  int64_t SuperPageTokens() const;
  PageId ResidentPage(const Layer& layer, int64_t token) const;
  // Whether the next token goes into a page that somebody else holds too.
  bool MustCopyLastPage(const Layer& layer) const;
  void CopyLastPage(Layer& layer);

  PagePool* pool_;
  std::vector<Layer> layers_;
};

}  // namespace winnow
