#include "kv/sequence_kv.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/check.h"

namespace winnow {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

SequenceKv::SequenceKv(PagePool* pool, int n_layers) : pool_(pool) {
  WINNOW_CHECK(pool != nullptr && n_layers >= 0, "{} layers", n_layers);
  layers_.resize(n_layers);
}

SequenceKv::~SequenceKv() { Clear(); }

SequenceKv::SequenceKv(SequenceKv&& other) noexcept
    : pool_(other.pool_), layers_(std::exchange(other.layers_, {})) {}

SequenceKv& SequenceKv::operator=(SequenceKv&& other) noexcept {
  SequenceKv taken(std::move(other));  // also right if `other` is this sequence
  std::swap(pool_, taken.pool_);
  std::swap(layers_, taken.layers_);
  return *this;
}

const SequenceKv::Layer& SequenceKv::at(int layer) const {
  WINNOW_CHECK(layer >= 0 && layer < n_layers(), "layer {} of {}", layer, n_layers());
  return layers_[layer];
}

SequenceKv::Layer& SequenceKv::at(int layer) {
  return const_cast<Layer&>(std::as_const(*this).at(layer));
}

PageId SequenceKv::ResidentPage(const Layer& layer, int64_t token) const {
  const int64_t slots = pool_->layout().slots;
  WINNOW_CHECK(token >= layer.n_released_pages * slots && token < layer.n_tokens,
               "token {} is not in [{}, {})", token, layer.n_released_pages * slots,
               layer.n_tokens);
  return layer.pages[token / slots];
}

int64_t SequenceKv::first_resident(int layer) const {
  return at(layer).n_released_pages * pool_->layout().slots;
}

SequenceKv SequenceKv::Fork() const {
  SequenceKv fork(pool_, 0);
  fork.layers_ = layers_;  // all that can throw, before the first reference
  // Summaries of super-pages are made again when they are next updated.
  for (Layer& layer : fork.layers_) {
    layer.super_pages.clear();
    layer.super_sides.clear();
  }
  for (const Layer& layer : layers_) {
    for (PageId page : layer.pages) {
      if (page != kNoPage) pool_->AddRef(page);
    }
  }
  return fork;
}

bool SequenceKv::MustCopyLastPage(const Layer& layer) const {
  return layer.n_tokens % pool_->layout().slots != 0 && pool_->ref_count(layer.pages.back()) > 1;
}

int64_t SequenceKv::PagesNeeded(int layer, int64_t n) const {
  const Layer& l = at(layer);
  WINNOW_CHECK(n >= 0);
  if (n == 0) return 0;
  const int64_t n_pages = CeilDiv(l.n_tokens + n, pool_->layout().slots);
  return n_pages - static_cast<int64_t>(l.pages.size()) + (MustCopyLastPage(l) ? 1 : 0);
}

void SequenceKv::CopyLastPage(Layer& layer) {
  const PageId shared = layer.pages.back();
  const PageId copy = pool_->TryAllocate();
  WINNOW_CHECK(copy != kNoPage);
  std::memcpy(pool_->data(copy), pool_->data(shared), pool_->layout().page_bytes);
  std::ranges::copy(pool_->positions(shared), pool_->positions(copy).begin());
  layer.pages.back() = copy;
  pool_->Release(shared);
}

bool SequenceKv::Append(int layer, std::span<const int32_t> positions) {
  Layer& l = at(layer);
  const auto n = static_cast<int64_t>(positions.size());
  if (n == 0) return true;
  const int64_t slots = pool_->layout().slots;
  // The last token may have been released: then only the new positions can be compared.
  if (l.n_tokens > l.n_released_pages * slots) {
    const int32_t last = position(layer, l.n_tokens - 1);
    WINNOW_CHECK(positions[0] > last, "position {} after {}", positions[0], last);
  }
  for (int64_t i = 1; i < n; ++i) {
    WINNOW_CHECK(positions[i] > positions[i - 1], "position {} after {}", positions[i],
                 positions[i - 1]);
  }
  if (PagesNeeded(layer, n) > pool_->free_pages()) return false;

  const size_t n_old_pages = l.pages.size();
  const bool copy = MustCopyLastPage(l);
  if (copy) CopyLastPage(l);
  // The only statement that can throw; a copied page changes nothing that anybody sees.
  l.pages.resize(CeilDiv(l.n_tokens + n, slots), kNoPage);
  for (size_t i = n_old_pages; i < l.pages.size(); ++i) l.pages[i] = pool_->TryAllocate();
  for (int64_t done = 0; done < n;) {
    const int64_t slot = l.n_tokens % slots;
    const int64_t count = std::min(slots - slot, n - done);
    std::ranges::copy(positions.subspan(done, count),
                      pool_->positions(l.pages[l.n_tokens / slots]).begin() + slot);
    l.n_tokens += count;
    done += count;
  }
  return true;
}

void SequenceKv::Truncate(int layer, int64_t n_tokens) {
  Layer& l = at(layer);
  const int64_t slots = pool_->layout().slots;
  WINNOW_CHECK(n_tokens >= 0 && n_tokens <= l.n_tokens, "{} of {} tokens", n_tokens, l.n_tokens);
  WINNOW_CHECK(n_tokens == 0 || n_tokens >= l.n_released_pages * slots,
               "{} tokens end where {} were released", n_tokens, l.n_released_pages * slots);
  const int64_t n_pages = CeilDiv(n_tokens, slots);
  while (static_cast<int64_t>(l.pages.size()) > n_pages) {
    if (l.pages.back() != kNoPage) pool_->Release(l.pages.back());
    l.pages.pop_back();
  }
  l.n_released_pages = std::min(l.n_released_pages, n_pages);
  l.n_tokens = n_tokens;
  const auto n_super_pages = static_cast<size_t>(n_tokens / SuperPageTokens());
  if (l.super_pages.size() > n_super_pages) l.super_pages.resize(n_super_pages);
}

void SequenceKv::ReleaseBefore(int layer, int64_t first) {
  Layer& l = at(layer);
  WINNOW_CHECK(first >= 0 && first <= l.n_tokens, "token {} of {}", first, l.n_tokens);
  for (; (l.n_released_pages + 1) * pool_->layout().slots <= first; ++l.n_released_pages) {
    pool_->Release(std::exchange(l.pages[l.n_released_pages], kNoPage));
  }
}

void SequenceKv::AdoptPages(int layer, std::span<const PageId> pages) {
  Layer& l = at(layer);
  WINNOW_CHECK(l.n_tokens == 0, "layer {} has {} tokens", layer, l.n_tokens);
  const auto first = std::ranges::find_if(pages, [](PageId page) { return page != kNoPage; });
  WINNOW_CHECK(std::find(first, pages.end(), kNoPage) == pages.end(),
               "a released page after a resident one");
  l.pages.assign(pages.begin(), pages.end());
  std::for_each(first, pages.end(), [&](PageId page) { pool_->AddRef(page); });
  l.n_tokens = static_cast<int64_t>(pages.size()) * pool_->layout().slots;
  l.n_released_pages = first - pages.begin();
}

PagedKv SequenceKv::View(int layer) const {
  const Layer& l = at(layer);
  return {.layout = &pool_->layout(),
          .base = pool_->base(),
          .side_base = pool_->side_base(),
          .versions = pool_->versions(),
          .pages = l.pages,
          .n_tokens = l.n_tokens};
}

int32_t SequenceKv::position(int layer, int64_t token) const {
  const PageId page = ResidentPage(at(layer), token);
  return std::as_const(*pool_).positions(page)[token % pool_->layout().slots];
}

std::byte* SequenceKv::WritablePage(int layer, int64_t token) {
  const PageId page = ResidentPage(at(layer), token);
  WINNOW_CHECK(pool_->ref_count(page) == 1, "page {} of layer {} is shared", page, layer);
  pool_->Touch(page);
  return pool_->data(page);
}

std::byte* SequenceKv::Planes(int layer, int64_t page_index) {
  const int64_t slots = pool_->layout().slots;
  WINNOW_CHECK((page_index + 1) * slots <= n_tokens(layer), "page {} of layer {} is not full",
               page_index, layer);
  return pool_->side(ResidentPage(at(layer), page_index * slots));
}

int64_t SequenceKv::SuperPageTokens() const {
  return static_cast<int64_t>(kSuperPagePages) * pool_->layout().slots;
}

PagedKv SequenceKv::SuperPages(int layer) const {
  const Layer& l = at(layer);
  const PageLayout& layout = pool_->super_page_layout();
  return {.layout = &layout,
          .side_base = l.super_sides.data(),
          .pages = l.super_pages,
          .n_tokens = std::ssize(l.super_pages) * layout.slots};
}

std::byte* SequenceKv::AddSuperPage(int layer) {
  Layer& l = at(layer);
  const size_t n = l.super_pages.size();
  const int64_t end = static_cast<int64_t>(n + 1) * SuperPageTokens();
  WINNOW_CHECK(end <= l.n_tokens && ResidentPage(l, end - SuperPageTokens()) != kNoPage);
  const size_t bytes = pool_->super_page_layout().side_bytes;
  l.super_sides.resize((n + 1) * bytes);
  l.super_pages.push_back(static_cast<PageId>(n));
  return l.super_sides.data() + n * bytes;
}

void SequenceKv::Clear() {
  for (int layer = 0; layer < n_layers(); ++layer) Truncate(layer, 0);
}

int64_t SequenceKv::allocated_pages() const {
  int64_t n = 0;
  for (const Layer& l : layers_) n += static_cast<int64_t>(l.pages.size()) - l.n_released_pages;
  return n;
}

void SequenceKv::CheckInvariants() const {
  const int64_t slots = pool_->layout().slots;
  std::vector<PageId> resident;
  for (int layer = 0; layer < n_layers(); ++layer) {
    const Layer& l = layers_[layer];
    const auto n_pages = static_cast<int64_t>(l.pages.size());
    WINNOW_CHECK(n_pages == CeilDiv(l.n_tokens, slots), "layer {}: {} pages for {} tokens", layer,
                 n_pages, l.n_tokens);
    WINNOW_CHECK(std::ssize(l.super_pages) * SuperPageTokens() <= l.n_tokens, "layer {}", layer);
    WINNOW_CHECK(l.n_released_pages >= 0 && l.n_released_pages * slots <= l.n_tokens,
                 "layer {}: {} pages released of {} tokens", layer, l.n_released_pages, l.n_tokens);
    for (int64_t i = 0; i < n_pages; ++i) {
      WINNOW_CHECK((l.pages[i] == kNoPage) == (i < l.n_released_pages), "layer {}, page {}", layer,
                   i);
      if (l.pages[i] == kNoPage) continue;
      WINNOW_CHECK(pool_->ref_count(l.pages[i]) > 0, "layer {} refers to a free page", layer);
      resident.push_back(l.pages[i]);
    }
    for (int64_t i = first_resident(layer) + 1; i < l.n_tokens; ++i) {
      WINNOW_CHECK(position(layer, i) > position(layer, i - 1), "layer {}, token {}", layer, i);
    }
  }
  std::ranges::sort(resident);
  WINNOW_CHECK(std::ranges::adjacent_find(resident) == resident.end(), "a page is used twice");
}

}  // namespace winnow
