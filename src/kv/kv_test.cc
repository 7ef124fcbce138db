#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sanitizer/asan_interface.h>

#include <cstring>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/memory.h"
#include "kv/page_layout.h"
#include "kv/page_pool.h"
#include "kv/prefix_cache.h"
#include "kv/sequence_kv.h"

namespace winnow {
namespace {

using ::testing::Each;

constexpr int kSlots = 4;

PageLayout SmallLayout() { return {2, kSlots, 8, DType::kF16}; }

// Positions first, first + 1, ..., n of them.
std::vector<int32_t> Range(int32_t first, int64_t n) {
  std::vector<int32_t> out(n);
  std::iota(out.begin(), out.end(), first);
  return out;
}

// A sequence with `n` tokens at every layer.
SequenceKv Filled(PagePool* pool, int n_layers, int64_t n) {
  SequenceKv kv(pool, n_layers);
  for (int layer = 0; layer < n_layers; ++layer) EXPECT_TRUE(kv.Append(layer, Range(0, n)));
  return kv;
}

// Hashes of `n` pages; two streams differ from their first page on.
std::vector<Hash128> Chain(int32_t stream, int64_t n) {
  std::vector<Hash128> hashes;
  for (int64_t i = 0; i < n; ++i) {
    const std::vector<int32_t> tokens(kSlots, stream);
    hashes.push_back(PrefixCache::PageHash(i == 0 ? Hash128{} : hashes.back(), tokens,
                                           Range(static_cast<int32_t>(i * kSlots), kSlots), 0));
  }
  return hashes;
}

TEST(PageLayout, PlacesHeadsKeysAndValues) {
  const PageLayout f16(3, 32, 64, DType::kF16);
  EXPECT_EQ(f16.row_bytes, 128u);
  EXPECT_EQ(f16.block_bytes, 4096u);
  EXPECT_EQ(f16.page_bytes, 24576u);
  EXPECT_EQ(f16.KeyOffset(0), 0u);
  EXPECT_EQ(f16.ValueOffset(0), 4096u);
  EXPECT_EQ(f16.KeyOffset(2), 16384u);
  EXPECT_EQ(f16.TokenBytes(10), 10 * 3 * 2 * 128);
  EXPECT_EQ(PageLayout(1, 32, 64, DType::kQ8_0).row_bytes, 68u);
  // 2 * 3 * 34 = 204 bytes, rounded up; the padding does not count as tokens.
  const PageLayout odd(1, 3, 32, DType::kQ8_0);
  EXPECT_EQ(odd.page_bytes, 256u);
  EXPECT_EQ(odd.TokenBytes(3), 204);
}

TEST(PageLayout, RefusesShapesThatCannotBe) {
  EXPECT_THROW(PageLayout(1, 32, 80, DType::kQ8_0), Error);
  EXPECT_THROW(PageLayout(0, 32, 64, DType::kF16), Error);
  EXPECT_THROW(PageLayout(1, 0, 64, DType::kF16), Error);
  EXPECT_THROW(PageLayout(1, 32, 513, DType::kF16, {Plane::kKeys4}), Error);
  EXPECT_EQ(PageLayout(1, 32, 512, DType::kF16, {Plane::kKeys4}).padded_dim, kMaxSketchDim);
  EXPECT_GT(PageLayout(1, 32, 1024, DType::kF16, {Plane::kKeyMean}).side_bytes, 0u);
  EXPECT_THROW(PageLayout(1, 32, -1, DType::kF16), Error);
}

TEST(PagePool, CountsReferencesAndReusesTheLastFreedPage) {
  PagePool pool(SmallLayout(), 3);
  EXPECT_EQ(pool.capacity_pages(), 3);
  const PageId a = pool.TryAllocate();
  const PageId b = pool.TryAllocate();
  const PageId c = pool.TryAllocate();
  EXPECT_EQ(pool.TryAllocate(), kNoPage);
  EXPECT_EQ(pool.free_pages(), 0);
  pool.AddRef(b);
  pool.Release(b);
  EXPECT_EQ(pool.ref_count(b), 1);
  EXPECT_EQ(pool.free_pages(), 0);
  pool.Release(a);
  pool.Release(b);
  EXPECT_EQ(pool.used_pages(), 1);
  pool.CheckInvariants();
  EXPECT_EQ(pool.TryAllocate(), b);
  EXPECT_EQ(pool.TryAllocate(), a);
  EXPECT_EQ(pool.ref_count(c), 1);
  EXPECT_EQ(pool.positions(c).size(), static_cast<size_t>(kSlots));
  pool.CheckInvariants();
}

TEST(PagePool, UnusedCapacityTakesNoMemory) {
  const size_t before = CurrentRssBytes();
  const PageLayout layout(8, 32, 128, DType::kF16);
  PagePool pool(layout, 262144);  // 32 GiB of addresses
  const PageId page = pool.TryAllocate();
  std::memset(pool.data(page), 1, layout.page_bytes);
  // One page, up to two huge pages of the system where it uses them, and the heap's own steps.
  EXPECT_LT(CurrentRssBytes(), before + (16u << 20));
}

TEST(PagePool, RefusesWhatCannotBeReserved) {
  const PageLayout layout = SmallLayout();
  for (int64_t n : {int64_t{1} << 40, std::numeric_limits<int64_t>::max()}) {
    try {
      PagePool pool(layout, n);
      FAIL() << n;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kResource);
    }
  }
  PagePool none(layout, 0);
  EXPECT_EQ(none.TryAllocate(), kNoPage);
  none.CheckInvariants();
}

TEST(PagePool, FreePagesArePoisonedUnderAddressSanitizer) {
#if !defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "built without AddressSanitizer";
#else
  PagePool pool(SmallLayout(), 2);
  const PageId page = pool.TryAllocate();
  EXPECT_FALSE(__asan_address_is_poisoned(pool.data(page)));
  pool.Release(page);
  EXPECT_TRUE(__asan_address_is_poisoned(pool.data(page)));
  EXPECT_EQ(pool.TryAllocate(), page);
  EXPECT_FALSE(__asan_address_is_poisoned(pool.data(page)));
#endif
}

TEST(PagePoolDeathTest, ChecksDoubleRelease) {
  PagePool pool(SmallLayout(), 2);
  const PageId page = pool.TryAllocate();
  pool.Release(page);
  EXPECT_DEATH(pool.Release(page), "is free");
  EXPECT_DEATH(pool.AddRef(page), "is free");
  EXPECT_DEATH(pool.Release(1), "page 1 of 1");
}

TEST(SequenceKv, AppendsTruncatesAndKeepsPositions) {
  PagePool pool(SmallLayout(), 8);
  SequenceKv kv(&pool, 2);
  EXPECT_EQ(kv.PagesNeeded(0, 0), 0);
  EXPECT_EQ(kv.PagesNeeded(0, 5), 2);
  ASSERT_TRUE(kv.Append(0, std::vector<int32_t>{3, 4, 9, 10, 20}));
  ASSERT_TRUE(kv.Append(0, {}));
  EXPECT_EQ(kv.n_tokens(0), 5);
  EXPECT_EQ(kv.n_tokens(1), 0);
  EXPECT_EQ(kv.position(0, 2), 9);
  EXPECT_EQ(kv.position(0, 4), 20);
  EXPECT_EQ(kv.PagesNeeded(0, 3), 0);
  EXPECT_EQ(kv.PagesNeeded(0, 4), 1);
  kv.Truncate(0, 4);
  EXPECT_EQ(pool.used_pages(), 1);
  ASSERT_TRUE(kv.Append(0, std::vector<int32_t>{11}));
  EXPECT_EQ(kv.position(0, 4), 11);
  kv.CheckInvariants();
  const PagedKv view = kv.View(0);
  EXPECT_EQ(view.n_tokens, 5);
  EXPECT_EQ(view.Keys(1, 1), kv.WritablePage(0, 4) + pool.layout().KeyOffset(1));
  EXPECT_EQ(view.Values(0, 1), kv.WritablePage(0, 0) + pool.layout().ValueOffset(1));
  kv.Clear();
  EXPECT_EQ(pool.used_pages(), 0);
  EXPECT_EQ(kv.n_layers(), 2);
}

TEST(SequenceKv, AppendThatDoesNotFitChangesNothing) {
  PagePool pool(SmallLayout(), 3);
  SequenceKv kv = Filled(&pool, 1, 6);
  SequenceKv fork = kv.Fork();
  // One page to copy the shared one, two new ones; one is free.
  EXPECT_EQ(fork.PagesNeeded(0, 10), 3);
  EXPECT_FALSE(fork.Append(0, Range(6, 10)));
  EXPECT_EQ(fork.n_tokens(0), 6);
  EXPECT_EQ(fork.pages(0)[1], kv.pages(0)[1]);
  EXPECT_EQ(pool.free_pages(), 1);
  EXPECT_TRUE(fork.Append(0, Range(6, 2)));
  EXPECT_FALSE(kv.Append(0, Range(6, 3)));
  EXPECT_TRUE(kv.Append(0, Range(6, 2)));  // the page is its own again
}

TEST(SequenceKv, ForkSharesPagesAndCopiesOnWrite) {
  PagePool pool(SmallLayout(), 8);
  SequenceKv a = Filled(&pool, 2, 6);
  std::memset(a.WritablePage(1, 4), 7, pool.layout().page_bytes);
  SequenceKv b = a.Fork();
  EXPECT_EQ(pool.used_pages(), 4);
  EXPECT_EQ(b.n_tokens(1), 6);
  ASSERT_TRUE(b.Append(1, std::vector<int32_t>{100}));
  EXPECT_EQ(pool.used_pages(), 5);
  EXPECT_NE(a.pages(1)[1], b.pages(1)[1]);
  EXPECT_EQ(a.pages(1)[0], b.pages(1)[0]);
  EXPECT_EQ(b.position(1, 5), 5);
  EXPECT_EQ(b.position(1, 6), 100);
  EXPECT_EQ(std::memcmp(a.View(1).Keys(1, 0), b.View(1).Keys(1, 0), 2 * pool.layout().row_bytes),
            0);
  std::memset(b.WritablePage(1, 6), 8, pool.layout().page_bytes);
  EXPECT_EQ(*a.View(1).Keys(1, 0), std::byte{7});
  b.Clear();
  EXPECT_EQ(pool.used_pages(), 4);
  a.CheckInvariants();
}

TEST(SequenceKv, AVersionNeverStandsForOtherContents) {
  PagePool pool(SmallLayout(), 2);
  SequenceKv a = Filled(&pool, 1, 6);
  const PageId page = a.pages(0)[1];
  const uint64_t filled = pool.versions()[page];
  EXPECT_EQ(a.View(0).versions, pool.versions());
  a.Truncate(0, 5);
  EXPECT_EQ(pool.versions()[page], filled);
  ASSERT_TRUE(a.Append(0, std::vector<int32_t>{9}));
  a.WritablePage(0, 5);  // the same slot of the same page
  const uint64_t written = pool.versions()[page];
  EXPECT_NE(written, filled);
  a.Clear();
  const SequenceKv b = Filled(&pool, 1, 6);  // the same pages again
  EXPECT_GT(pool.versions()[page], written);
}

TEST(SequenceKv, ReleaseBeforeKeepsIndices) {
  PagePool pool(SmallLayout(), 8);
  SequenceKv kv = Filled(&pool, 1, 14);
  kv.ReleaseBefore(0, 3);
  EXPECT_EQ(kv.first_resident(0), 0);
  kv.ReleaseBefore(0, 9);
  EXPECT_EQ(kv.first_resident(0), 8);
  kv.ReleaseBefore(0, 5);
  EXPECT_EQ(kv.first_resident(0), 8);
  EXPECT_EQ(kv.allocated_pages(), 2);
  EXPECT_EQ(kv.pages(0).size(), 4u);
  EXPECT_EQ(kv.pages(0)[1], kNoPage);
  EXPECT_EQ(kv.position(0, 13), 13);
  kv.CheckInvariants();
  kv.Truncate(0, 8);  // nothing resident is left, the count is
  EXPECT_EQ(pool.used_pages(), 0);
  ASSERT_TRUE(kv.Append(0, Range(8, 1)));
  EXPECT_EQ(kv.position(0, 8), 8);
  kv.CheckInvariants();
}

TEST(SequenceKv, MovedFromIsEmptyAndSelfMoveKeepsTheContents) {
  PagePool pool(SmallLayout(), 8);
  SequenceKv a = Filled(&pool, 2, 5);
  SequenceKv b(std::move(a));
  EXPECT_EQ(a.n_layers(), 0);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(a.allocated_pages(), 0);
  a.CheckInvariants();
  SequenceKv c = Filled(&pool, 2, 1);
  c = std::move(b);
  EXPECT_EQ(pool.used_pages(), 4);
  SequenceKv& same = c;
  c = std::move(same);
  EXPECT_EQ(c.n_tokens(1), 5);
  c.CheckInvariants();
}

TEST(SequenceKvDeathTest, ChecksMisuse) {
  PagePool pool(SmallLayout(), 8);
  SequenceKv kv = Filled(&pool, 1, 10);
  EXPECT_DEATH(kv.Append(0, std::vector<int32_t>{9}), "position 9 after 9");
  EXPECT_DEATH(kv.Append(0, std::vector<int32_t>{11, 11}), "position 11 after 11");
  EXPECT_DEATH(kv.Truncate(0, 11), "11 of 10");
  EXPECT_DEATH(kv.WritablePage(0, 10), "token 10");
  EXPECT_DEATH(kv.Append(1, {}), "layer 1 of 1");
  EXPECT_DEATH(kv.AdoptPages(0, {}), "layer 0 has 10");
  kv.ReleaseBefore(0, 8);
  EXPECT_DEATH(kv.Truncate(0, 7), "released");
  EXPECT_DEATH(kv.position(0, 7), "token 7");
  const SequenceKv fork = kv.Fork();
  EXPECT_DEATH(kv.WritablePage(0, 9), "is shared");
}

TEST(PrefixCache, HashContainsEverything) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4};
  const std::vector<int32_t> positions = {0, 1, 2, 3};
  const std::vector<int32_t> other = {0, 1, 2, 5};
  const Hash128 hash = PrefixCache::PageHash({}, tokens, positions, 1);
  EXPECT_EQ(hash, PrefixCache::PageHash({}, tokens, positions, 1));
  EXPECT_NE(hash, PrefixCache::PageHash(hash, tokens, positions, 1));
  EXPECT_NE(hash, PrefixCache::PageHash({}, other, positions, 1));
  EXPECT_NE(hash, PrefixCache::PageHash({}, tokens, other, 1));
  EXPECT_NE(hash, PrefixCache::PageHash({}, tokens, positions, 2));
  EXPECT_NE(hash, PrefixCache::PageHash({}, positions, tokens, 1));
}

TEST(PrefixCache, AdoptsTheLongestRunAndOutlivesItsSource) {
  PagePool pool(SmallLayout(), 16);
  PrefixCache cache(&pool, {0, 0});
  const std::vector<Hash128> hashes = Chain(1, 3);
  {
    const SequenceKv source = Filled(&pool, 2, 13);
    cache.Insert(std::span(hashes).first(2), source);
    cache.Insert(std::span(hashes).first(2), source);  // takes no second reference
    EXPECT_EQ(pool.ref_count(source.pages(0)[0]), 2);
  }
  EXPECT_EQ(pool.used_pages(), 4);
  EXPECT_EQ(cache.evictable_pages(), 4);
  SequenceKv kv(&pool, 2);
  EXPECT_EQ(cache.Adopt(Chain(2, 3), 3, &kv), 0);
  EXPECT_EQ(cache.Adopt(hashes, 0, &kv), 0);
  EXPECT_EQ(cache.Adopt(hashes, 1, &kv), 1);
  kv.Clear();
  EXPECT_EQ(cache.Adopt(hashes, 3, &kv), 2);
  EXPECT_EQ(kv.n_tokens(1), 8);
  EXPECT_EQ(kv.position(1, 7), 7);
  EXPECT_EQ(cache.evictable_pages(), 0);
  kv.Truncate(0, 7);
  EXPECT_EQ(kv.PagesNeeded(0, 1), 1);  // the cache's page is not written
  cache.CheckInvariants();
}

TEST(PrefixCache, LocalLayersNeedTheirWindowOnly) {
  PagePool pool(SmallLayout(), 32);
  PrefixCache cache(&pool, {0, 6});
  const std::vector<Hash128> hashes = Chain(1, 5);
  {
    SequenceKv source = Filled(&pool, 2, 20);
    source.ReleaseBefore(1, 8);
    cache.Insert(hashes, source);
  }
  // A query at 4n sees the tokens after 4n - 6: those from 4n - 5 on, in the pages n - 2 and n - 1.
  SequenceKv kv(&pool, 2);
  EXPECT_EQ(cache.Adopt(hashes, 3, &kv), 0);  // would need page 1
  EXPECT_EQ(cache.Adopt(hashes, 4, &kv), 4);
  EXPECT_EQ(kv.first_resident(0), 0);
  EXPECT_EQ(kv.first_resident(1), 8);
  kv.Clear();
  EXPECT_EQ(cache.Adopt(hashes, 5, &kv), 5);
  EXPECT_EQ(kv.first_resident(1), 12);
  kv.Clear();
  // Another sequence with the same prompt brings the pages that were missing.
  cache.Insert(std::span(hashes).first(2), Filled(&pool, 2, 8));
  EXPECT_EQ(cache.size(), 5);
  EXPECT_EQ(cache.Adopt(hashes, 3, &kv), 3);
  EXPECT_EQ(kv.first_resident(1), 4);
  cache.CheckInvariants();
}

TEST(PrefixCache, WindowOfOneNeedsNoPage) {
  PagePool pool(SmallLayout(), 8);
  PrefixCache cache(&pool, {0, 1});
  const std::vector<Hash128> hashes = Chain(1, 2);
  SequenceKv source = Filled(&pool, 2, 8);
  source.ReleaseBefore(1, 8);
  cache.Insert(hashes, source);
  SequenceKv kv(&pool, 2);
  EXPECT_EQ(cache.Adopt(hashes, 2, &kv), 2);
  EXPECT_EQ(kv.n_tokens(1), 8);
  EXPECT_THAT(kv.pages(1), Each(kNoPage));
  kv.CheckInvariants();
}

TEST(PrefixCache, EvictsEndsOfChainsUsedLongestAgo) {
  PagePool pool(SmallLayout(), 16);
  PrefixCache cache(&pool, {0});
  const std::vector<Hash128> a = Chain(1, 3);
  const std::vector<Hash128> b = Chain(2, 2);
  cache.Insert(a, Filled(&pool, 1, 12));
  cache.Insert(b, Filled(&pool, 1, 8));
  SequenceKv kv(&pool, 1);
  ASSERT_EQ(cache.Adopt(a, 2, &kv), 2);  // a[2] stays the oldest, then b
  kv.Clear();
  EXPECT_EQ(cache.Evict(2), 2);  // a[2], b[1]
  EXPECT_EQ(cache.Adopt(a, 3, &kv), 2);
  kv.Clear();
  EXPECT_EQ(cache.Adopt(b, 2, &kv), 1);
  // b[0] is in use: freeing what is left takes both of a.
  EXPECT_EQ(cache.evictable_pages(), 2);
  EXPECT_EQ(cache.Evict(100), 2);
  EXPECT_EQ(cache.size(), 1);
  EXPECT_EQ(cache.Evict(1), 0);
  kv.Clear();
  EXPECT_EQ(cache.Evict(1), 1);
  EXPECT_EQ(pool.used_pages(), 0);
  cache.CheckInvariants();
}

TEST(PrefixCache, EvictsLocalPagesBehindAnEndThatIsInUse) {
  PagePool pool(SmallLayout(), 16);
  PrefixCache cache(&pool, {0, 3});
  const std::vector<Hash128> hashes = Chain(1, 3);
  SequenceKv source = Filled(&pool, 2, 12);
  cache.Insert(hashes, source);
  source.ReleaseBefore(1, 8);
  EXPECT_EQ(cache.evictable_pages(), 2);
  EXPECT_EQ(cache.Evict(1), 1);
  EXPECT_EQ(cache.Evict(5), 1);
  EXPECT_EQ(cache.size(), 3);
  SequenceKv kv(&pool, 2);
  EXPECT_EQ(cache.Adopt(hashes, 2, &kv), 0);
  EXPECT_EQ(cache.Adopt(hashes, 3, &kv), 3);
  cache.CheckInvariants();
}

TEST(PrefixCache, ManyEntries) {
  constexpr int64_t kEntries = 100000;
  PagePool pool({1, kSlots, 2, DType::kF16}, kEntries);
  PrefixCache cache(&pool, {0});
  const std::vector<Hash128> hashes = Chain(1, kEntries);
  cache.Insert(hashes, Filled(&pool, 1, kEntries * kSlots));
  SequenceKv kv(&pool, 1);
  EXPECT_EQ(cache.Adopt(hashes, kEntries, &kv), kEntries);
  kv.Truncate(0, kSlots);
  EXPECT_EQ(cache.Evict(kEntries), kEntries - 1);
  EXPECT_EQ(cache.size(), 1);
  cache.CheckInvariants();
}

}  // namespace
}  // namespace winnow
