#include "ops/kv_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/rng.h"
#include "kv/page_pool.h"

namespace winnow {
namespace {

constexpr int kHeads = 2;
constexpr int kSlots = 16;
constexpr int kDim = 64;
constexpr int64_t kRow = kHeads * kDim;

class KvStoreTest : public testing::TestWithParam<DType> {
 protected:
  // Appends `n` seeded tokens to layer 1 and stores them in one call.
  void Append(int64_t n) {
    const int64_t first = kv_.n_tokens(1);
    std::vector<int32_t> positions(static_cast<size_t>(n));
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(first));
    ASSERT_TRUE(kv_.Append(1, positions));
    for (int64_t i = 0; i < n * kRow; ++i) {
      keys_.push_back(static_cast<float>(rng_.Normal()));
      values_.push_back(static_cast<float>(rng_.Normal()));
    }
    StoreKv(&kv_, 1, first, {keys_.data() + first * kRow, {n, kHeads, kDim}},
            {values_.data() + first * kRow, {n, kHeads, kDim}});
  }

  // Largest error of storing `row`: half a unit in the last place of an f16 of this size; for q8_0
  // half a step of max/127, where the step is an f16 too (2^-11 relative, times at most 127 steps)
  // and a value on the edge may be rounded either way (a hundredth of a step). f32 is exact.
  static float Tolerance(const float* row, int d) {
    switch (GetParam()) {
      case DType::kF32:
        return 0.0f;
      case DType::kF16:
        return std::max(std::abs(row[d]) * 0x1p-11f, 0x1p-25f);
      case DType::kQ8_0: {
        float max = 0;
        const float* block = row + d / kQ8BlockValues * kQ8BlockValues;
        for (int i = 0; i < kQ8BlockValues; ++i) max = std::max(max, std::abs(block[i]));
        return max / 127 * 0.51f + std::abs(row[d]) * 0x1p-11f;
      }
    }
    return 0.0f;
  }

  Rng rng_{11};
  PagePool pool_{PageLayout(kHeads, kSlots, kDim, GetParam()), 64};
  SequenceKv kv_{&pool_, 2};
  std::vector<float> keys_;
  std::vector<float> values_;
};

TEST_P(KvStoreTest, ReadsBackWhatWasStoredAcrossPages) {
  for (int64_t n : {1, 14, 1, 40, 3}) Append(n);
  std::vector<float> k(kDim);
  std::vector<float> v(kDim);
  const PagedKv view = kv_.View(1);
  for (int64_t token = 0; token < kv_.n_tokens(1); ++token) {
    for (int head = 0; head < kHeads; ++head) {
      LoadKv(view, head, token, k.data(), v.data());
      const float* key = keys_.data() + token * kRow + head * kDim;
      const float* value = values_.data() + token * kRow + head * kDim;
      for (int d = 0; d < kDim; ++d) {
        ASSERT_NEAR(k[d], key[d], Tolerance(key, d)) << token << ' ' << head << ' ' << d;
        ASSERT_NEAR(v[d], value[d], Tolerance(value, d)) << token << ' ' << head << ' ' << d;
      }
    }
  }
}

TEST_P(KvStoreTest, ChunksDoNotMatter) {
  Append(37);
  PagePool other_pool(pool_.layout(), 64);
  SequenceKv other(&other_pool, 2);
  for (int32_t token = 0; token < 37; ++token) {
    ASSERT_TRUE(other.Append(1, {&token, 1}));
    StoreKv(&other, 1, token, {keys_.data() + token * kRow, {1, kHeads, kDim}},
            {values_.data() + token * kRow, {1, kHeads, kDim}});
  }
  std::vector<float> a(2 * kDim);
  std::vector<float> b(2 * kDim);
  for (int64_t token = 0; token < 37; ++token) {
    for (int head = 0; head < kHeads; ++head) {
      LoadKv(kv_.View(1), head, token, a.data(), a.data() + kDim);
      LoadKv(other.View(1), head, token, b.data(), b.data() + kDim);
      ASSERT_EQ(a, b) << token << ' ' << head;
    }
  }
}

TEST_P(KvStoreTest, StoringNothingIsAllowed) {
  StoreKv(&kv_, 1, 0, {nullptr, {0, kHeads, kDim}}, {nullptr, {0, kHeads, kDim}});
  EXPECT_EQ(kv_.n_tokens(1), 0);
}

using KvStoreDeathTest = KvStoreTest;

TEST_P(KvStoreDeathTest, WrongShapesAndTokensAreCaught) {
  Append(3);
  const TensorView<const float, 3> one(keys_.data(), {1, kHeads, kDim});
  EXPECT_DEATH(StoreKv(&kv_, 1, 3, one, one), "tokens \\[3, 4\\) of 3");
  EXPECT_DEATH(StoreKv(&kv_, 1, 0, {keys_.data(), {1, 1, kDim}}, {values_.data(), {1, 1, kDim}}),
               "layout");
  EXPECT_DEATH(LoadKv(kv_.View(1), 0, 3, nullptr, nullptr), "token 3 of 3");
}

INSTANTIATE_TEST_SUITE_P(Types, KvStoreTest,
                         testing::Values(DType::kF32, DType::kF16, DType::kQ8_0),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });
INSTANTIATE_TEST_SUITE_P(Types, KvStoreDeathTest,
                         testing::Values(DType::kF32, DType::kF16, DType::kQ8_0),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace winnow
