// A compacted layer is, planes and super-pages included, what a layer would be that only ever held
// the tokens that stayed.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "core/rng.h"
#include "kv/page_pool.h"
#include "kv/sequence_kv.h"
#include "ops/kv_store.h"
#include "ops/page_planes.h"

namespace winnow {
namespace {

constexpr int kHeads = 2;
constexpr int kDim = 32;
constexpr int kSlots = 16;

// Keys and values of one token at one position, [K·D] each.
std::vector<float> Rows(int32_t position, uint64_t seed) {
  Rng rng(seed + static_cast<uint64_t>(position));
  std::vector<float> rows(kHeads * kDim);
  for (float& x : rows) x = static_cast<float>(rng.Normal());
  return rows;
}

void Append(ThreadPool& threads, SequenceKv* kv, const std::vector<int32_t>& positions) {
  const int64_t first = kv->n_tokens(0);
  ASSERT_TRUE(kv->Append(0, positions));
  std::vector<float> keys;
  std::vector<float> values;
  for (int32_t position : positions) {
    const std::vector<float> k = Rows(position, 1000000);
    const std::vector<float> v = Rows(position, 2000000);
    keys.insert(keys.end(), k.begin(), k.end());
    values.insert(values.end(), v.begin(), v.end());
  }
  const std::array<int64_t, 3> shape{std::ssize(positions), kHeads, kDim};
  StoreKv(kv, 0, first, {keys.data(), shape}, {values.data(), shape});
  UpdatePlanes(threads, kv, 0, first, kv->n_tokens(0));
}

void ExpectSame(const SequenceKv& a, const SequenceKv& b) {
  ASSERT_EQ(a.n_tokens(0), b.n_tokens(0));
  std::vector<float> rows_a(2 * kDim);
  std::vector<float> rows_b(2 * kDim);
  for (int64_t t = 0; t < a.n_tokens(0); ++t) {
    EXPECT_EQ(a.position(0, t), b.position(0, t));
    for (int head = 0; head < kHeads; ++head) {
      LoadKv(a.View(0), head, t, rows_a.data(), rows_a.data() + kDim);
      LoadKv(b.View(0), head, t, rows_b.data(), rows_b.data() + kDim);
      ASSERT_EQ(rows_a, rows_b) << "token " << t;
    }
  }
  const PageLayout& layout = a.pool().layout();
  for (int64_t page = 0; (page + 1) * kSlots <= a.n_tokens(0); ++page) {
    const auto side = [&](const SequenceKv& kv) {
      return kv.View(0).PlaneOf(Plane::kKeys4, page, 0) - layout.PlaneOffset(Plane::kKeys4, 0);
    };
    ASSERT_EQ(0, std::memcmp(side(a), side(b), layout.side_bytes)) << "page " << page;
  }
  const PagedKv super_a = a.SuperPages(0);
  const PagedKv super_b = b.SuperPages(0);
  ASSERT_EQ(super_a.pages.size(), super_b.pages.size());
  ASSERT_EQ(0, std::memcmp(super_a.side_base, super_b.side_base,
                           super_a.pages.size() * super_a.layout->side_bytes));
}

TEST(Compaction, IsALayerThatOnlyHeldWhatStayed) {
  ThreadPool threads(2);
  const PageLayout layout(kHeads, kSlots, kDim, DType::kF16,
                          {Plane::kKeys4, Plane::kValues2, Plane::kKeyMean, Plane::kKeyDeviation,
                           Plane::kKeyBox, Plane::kValueMean, Plane::kValueSpread});
  PagePool pool(layout, 400);
  std::vector<int32_t> all(1100);
  std::iota(all.begin(), all.end(), 0);
  for (const bool shared : {false, true}) {
    for (const int64_t unmoved : {0, 15, 256, 300, 1100}) {
      SCOPED_TRACE(unmoved);
      SequenceKv kv(&pool, 1);
      Append(threads, &kv, all);
      std::optional<SequenceKv> other;
      if (shared) other = kv.Fork();
      std::vector<int64_t> tokens;
      for (int64_t t = 0; t < 1100; ++t) {
        if (t < unmoved || t % 7 < 4) tokens.push_back(t);
      }
      const std::optional<int64_t> changed = kv.Keep(0, tokens);
      ASSERT_TRUE(changed.has_value());
      UpdatePlanes(threads, &kv, 0, *changed, kv.n_tokens(0));
      kv.CheckInvariants();

      SequenceKv fresh(&pool, 1);
      Append(threads, &fresh, {tokens.begin(), tokens.end()});
      ExpectSame(kv, fresh);
      // It goes on as any other.
      Append(threads, &kv, {2000, 2001, 2002});
      Append(threads, &fresh, {2000, 2001, 2002});
      ExpectSame(kv, fresh);
      if (!shared) continue;
      SequenceKv untouched(&pool, 1);
      Append(threads, &untouched, all);
      UpdatePlanes(threads, &*other, 0, 0, 1100);
      ExpectSame(*other, untouched);
    }
  }
}

}  // namespace
}  // namespace winnow
