#include "ops/super_pages.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "ops/kv_store.h"
#include "ops/page_planes.h"
#include "ops/paged_layer_test.h"

namespace winnow {
namespace {

using ::winnow::testing::PagedLayer;

constexpr PlaneSet kSummaries = {Plane::kKeyMean, Plane::kKeyDeviation, Plane::kKeyBox};

std::vector<float> Row(const PagedKv& super, Plane plane, int64_t index, int head, int row = 0) {
  std::vector<float> values(super.layout->padded_dim);
  LoadKeyStatistics(super, plane, row, index, head, values);
  return values;
}

// f16 rounds to 2^-11, and the way by f32 adds 2^-12 of that. So a page's mean and deviation are
// off by 2^-11 of their sizes, whose root mean square over the pages is that of the keys, r; mean
// and deviation of the super-page, as norms, by no more than 2^-11·r, and by as much when they are
// rounded themselves.
TEST(SuperPages, HoldTheStatisticsOfAllTheirKeys) {
  ThreadPool threads(2);
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    PagedLayer layer({2, 3, 40, 32, 37 * 32 + 5}, kSummaries, dtype, 1);
    for (int c = 0; c < 40; ++c) layer.key(700, 1)[c] = 20;
    layer.Store(threads);
    const PagedKv super = layer.SuperPages();
    ASSERT_EQ(std::ssize(super.pages), 2);
    EXPECT_TRUE(super.layout->planes == kSummaries);
    for (int head = 0; head < 2; ++head) {
      const std::vector<double> keys = layer.Stored(3 * head).keys;
      for (int64_t i = 0; i < 2; ++i) {
        const std::vector<float> means = Row(super, Plane::kKeyMean, i, head);
        const std::vector<float> deviations = Row(super, Plane::kKeyDeviation, i, head);
        const std::vector<float> lows = Row(super, Plane::kKeyBox, i, head, 0);
        const std::vector<float> highs = Row(super, Plane::kKeyBox, i, head, 1);
        for (int c = 0; c < 40; ++c) {
          double mean = 0;
          double squares = 0;
          double low = 1e9;
          double high = -1e9;
          for (int64_t t = i * 512; t < (i + 1) * 512; ++t) {
            const double x = keys[t * 40 + c];
            mean += x / 512;
            squares += x * x / 512;
            low = std::min(low, x);
            high = std::max(high, x);
          }
          const double tolerance = std::sqrt(squares) * 0x1p-10 * (1 + 0x1p-10);
          EXPECT_NEAR(means[c], mean, tolerance);
          EXPECT_NEAR(deviations[c], std::sqrt(squares - mean * mean), tolerance);
          // Outward, and by less than a step.
          const double step = dtype == DType::kF16 ? 0 : 0x1p-10;
          EXPECT_LE(lows[c], low);
          EXPECT_GE(lows[c], low - std::abs(low) * step);
          EXPECT_GE(highs[c], high);
          EXPECT_LE(highs[c], high + std::abs(high) * step);
        }
        for (const auto* row : {&means, &deviations, &lows, &highs}) {
          for (int c = 40; c < 48; ++c) EXPECT_EQ((*row)[c], 0);
        }
      }
    }
  }
}

TEST(SuperPages, WhatF16CannotHoldReachesItsOwn) {
  ThreadPool threads(1);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity, 65505.0f, -1e30f}) {
    PagedLayer layer({1, 1, 16, 32, 3 * 512}, kSummaries, DType::kF32, 2);
    layer.key(600, 0)[3] = bad;
    for (int64_t t = 512; t < 1024; ++t) layer.key(t, 0)[4] = 65504;
    layer.Store(threads);
    const PagedKv super = layer.SuperPages();
    for (int64_t i = 0; i < 3; ++i) {
      for (const Plane plane : {Plane::kKeyMean, Plane::kKeyDeviation, Plane::kKeyBox}) {
        for (int row = 0; row < (plane == Plane::kKeyBox ? 2 : 1); ++row) {
          const std::vector<float> values = Row(super, plane, i, 0, row);
          for (int c = 0; c < 16; ++c) {
            EXPECT_EQ(std::isnan(values[c]), i == 1 && c == 3) << bad;
            EXPECT_FALSE(std::isinf(values[c]));
          }
        }
      }
    }
  }
}

TEST(SuperPages, LayoutsWithoutSummariesHaveNone) {
  ThreadPool threads(1);
  PagedLayer layer({1, 1, 32, 32, 600}, {Plane::kKeys4, Plane::kValueMean}, DType::kF32, 2);
  layer.Store(threads);
  EXPECT_TRUE(layer.SuperPages().pages.empty());
}

// Random histories of sequences that share pages: what a sequence keeps of its super-pages is, bit
// for bit, what is made anew from its pages.
class History {
 public:
  History() : pool_(PageLayout(2, 8, 16, DType::kF32, kSummaries), 4000) {
    sequences_.emplace_back(&pool_, 1);
  }

  void Step() {
    const size_t i = rng_.Below(sequences_.size());
    SequenceKv& kv = sequences_[i];
    const int64_t n = kv.n_tokens(0);
    switch (rng_.Below(8)) {
      case 0:
        kv.Truncate(0, static_cast<int64_t>(rng_.Below(n + 1)));
        break;
      case 1:
        if (sequences_.size() < 4) sequences_.push_back(kv.Fork());
        break;
      case 2: {  // another one with the same full pages
        SequenceKv other(&pool_, 1);
        other.AdoptPages(0, kv.pages(0).first(n / 8));
        sequences_[rng_.Below(sequences_.size())] = std::move(other);
        break;
      }
      default:
        Append(&kv, 1 + static_cast<int64_t>(rng_.Below(300)));
    }
  }

  void Verify() {
    for (SequenceKv& kv : sequences_) {
      kv.CheckInvariants();
      SequenceKv fresh(&pool_, 1);
      const int64_t n_full = kv.n_tokens(0) / 8;
      fresh.AdoptPages(0, kv.pages(0).first(n_full));
      UpdateSuperPages(&fresh, 0);
      const PagedKv expected = fresh.SuperPages(0);
      const PagedKv kept = kv.SuperPages(0);
      ASSERT_EQ(std::ssize(expected.pages), n_full / kSuperPagePages);
      // Of an adopted or forked sequence they are made with its next token.
      ASSERT_LE(kept.pages.size(), expected.pages.size());
      if (kept.pages.empty()) continue;
      n_kept_ += std::ssize(kept.pages);
      EXPECT_EQ(0, std::memcmp(kept.side_base, expected.side_base,
                               kept.pages.size() * kept.layout->side_bytes));
    }
  }
  int64_t n_kept() const { return n_kept_; }

 private:
  void Append(SequenceKv* kv, int64_t n) {
    const int64_t first = kv->n_tokens(0);
    std::vector<int32_t> positions(n);
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(first));
    if (!kv->Append(0, positions)) return;
    std::vector<float> k(n * 32);
    for (float& x : k) x = static_cast<float>(rng_.Normal());
    StoreKv(kv, 0, first, {k.data(), {n, 2, 16}}, {k.data(), {n, 2, 16}});
    UpdatePlanes(threads_, kv, 0, first, first + n);
    EXPECT_EQ(std::ssize(kv->SuperPages(0).pages), (first + n) / 8 / kSuperPagePages);
  }

  ThreadPool threads_{1};
  Rng rng_{3};
  PagePool pool_;
  std::vector<SequenceKv> sequences_;
  int64_t n_kept_ = 0;
};

TEST(SuperPages, EqualRecomputationAfterAnyHistory) {
  History history;
  for (int i = 0; i < 400; ++i) {
    history.Step();
    history.Verify();
  }
  EXPECT_GT(history.n_kept(), 1000);
}

}  // namespace
}  // namespace winnow
