// The statistics of keys as planes hold them, and the summary that is made of them, against the
// keys.
#include "policy/certify/stored_summary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ops/paged_layer_test.h"
#include "policy/certify/mgf_bounds.h"

namespace winnow {
namespace {

using testing::PagedLayer;

constexpr int kDim = 40;
constexpr int kPadded = 48;
constexpr int kSlots = 32;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kSubnormal = 0x1p-24;  // the least f16 above zero

// One page of each kind: 0 normal, 1 equal keys, 2 subnormal numbers of f16, 3 smaller ones, 4 the
// largest, 5 a small spread far from the origin, 6 two clusters, 7 zeros, 8 one outlier.
constexpr int kKinds = 9;

void FillPages(PagedLayer& layer, Rng& rng) {
  std::vector<float> centre(kDim);
  for (int64_t t = 0; t < layer.shape().n_tokens; ++t) {
    const int64_t kind = t / kSlots;
    const int64_t slot = t % kSlots;
    for (int head = 0; head < layer.shape().kv_heads; ++head) {
      for (int c = 0; c < kDim; ++c) {
        float& x = layer.key(t, head)[c];
        if (slot == 0) centre[c] = x;
        if (kind == 1) x = 0.1f * static_cast<float>(c + 1);
        if (kind == 2) x *= 1e-6f;
        if (kind == 3) x *= 1e-9f;
        if (kind == 4) x = std::clamp(x * 1e5f, -65504.0f, 65504.0f);
        if (kind == 5) x = static_cast<float>(1000 + 10 * c) + 1e-3f * x;
        if (kind == 6) x = (rng.Below(2) == 0 ? 3.0f : -3.0f) + 0.01f * x;
        if (kind == 7) x = 0;
        if (kind == 8 && slot == 9) x *= 1000;
      }
    }
  }
}

struct Truth {
  long double mean = 0, deviation = 0, low = 0, high = 0;
};

Truth TruthOf(const PagedLayer::Rows& rows, int64_t page, int c) {
  const auto key = [&](int64_t slot) { return rows.keys[(page * kSlots + slot) * kDim + c]; };
  Truth truth{.low = key(0), .high = key(0)};
  for (int64_t t = 0; t < kSlots; ++t) {
    truth.mean += static_cast<long double>(key(t)) / kSlots;
    truth.low = std::min<long double>(truth.low, key(t));
    truth.high = std::max<long double>(truth.high, key(t));
  }
  long double squares = 0;
  for (int64_t t = 0; t < kSlots; ++t) {
    squares += (key(t) - truth.mean) * (key(t) - truth.mean);
  }
  truth.deviation = std::sqrt(squares / kSlots);
  return truth;
}

class StoredSummary : public ::testing::TestWithParam<DType> {
 protected:
  StoredSummary()
      : layer_({2, 1, kDim, kSlots, kKinds * kSlots}, StoredSummaryPlanes(), GetParam(), 7) {
    FillPages(layer_, rng_);
    layer_.Store(threads_);
  }

  ThreadPool threads_{2};
  Rng rng_{5};
  PagedLayer layer_;
};

// f16 has 11 bits of significand: the nearest is off by at most 2^-11 of the number, or by half a
// subnormal; the way by f32 adds 2^-13 of that. Rounded outward it is less than twice that off.
TEST_P(StoredSummary, IsRoundedOnce) {
  std::vector<float> mean(kPadded), deviation(kPadded), low(kPadded), high(kPadded);
  const auto half_step = [](long double x) {
    return static_cast<double>(std::max<long double>(std::abs(x) * 0x1p-11L, kSubnormal / 2) *
                               (1 + 0x1p-12L));
  };
  for (int head = 0; head < 2; ++head) {
    const PagedLayer::Rows rows = layer_.Stored(head);
    for (int64_t page = 0; page < kKinds; ++page) {
      LoadKeyStatistics(layer_.View(), Plane::kKeyMean, 0, page, head, mean);
      LoadKeyStatistics(layer_.View(), Plane::kKeyDeviation, 0, page, head, deviation);
      LoadKeyStatistics(layer_.View(), Plane::kKeyBox, 0, page, head, low);
      LoadKeyStatistics(layer_.View(), Plane::kKeyBox, 1, page, head, high);
      for (int c = 0; c < kDim; ++c) {
        const Truth truth = TruthOf(rows, page, c);
        EXPECT_NEAR(mean[c], truth.mean, half_step(truth.mean));
        // Computed in double around a rounded mean.
        EXPECT_NEAR(deviation[c], truth.deviation,
                    half_step(truth.deviation) + 1e-14 * std::abs(truth.high));
        EXPECT_LE(low[c], truth.low);
        EXPECT_GE(high[c], truth.high);
        if (GetParam() == DType::kF16) {
          EXPECT_EQ(low[c], truth.low);
          EXPECT_EQ(high[c], truth.high);
        } else {
          EXPECT_GT(low[c], truth.low - 2 * half_step(truth.low));
          EXPECT_LT(high[c], truth.high + 2 * half_step(truth.high));
        }
      }
      for (int c = kDim; c < kPadded; ++c) {
        for (const auto* row : {&mean, &deviation, &low, &high}) EXPECT_EQ((*row)[c], 0.0f);
      }
    }
  }
}

TEST_P(StoredSummary, HoldsItsPage) {
  PageSummary summary;
  for (int head = 0; head < 2; ++head) {
    const PagedLayer::Rows rows = layer_.Stored(head);
    for (int64_t page = 0; page < kKinds; ++page) {
      LoadStoredSummary(layer_.View(), page, head, &summary);
      for (int c = 0; c < kDim; ++c) {
        const Truth truth = TruthOf(rows, page, c);
        EXPECT_LE(std::abs(summary.mean[c] - truth.mean), summary.mean_error[c]);
        EXPECT_LE(summary.box_lo[c], truth.low);
        EXPECT_GE(summary.box_hi[c], truth.high);
        EXPECT_LE(summary.deviation_lo[c], truth.deviation) << "page " << page;
        EXPECT_GE(summary.deviation_hi[c], truth.deviation) << "page " << page;
      }
      for (int i = 0; i < 20; ++i) {
        std::vector<double> q(kDim);
        const double scale = std::pow(10.0, -3 + 4 * rng_.Uniform());
        for (double& x : q) x = scale * rng_.Normal();
        std::vector<long double> logits(kSlots);
        for (int t = 0; t < kSlots; ++t) {
          for (int c = 0; c < kDim; ++c) {
            logits[t] += static_cast<long double>(q[c]) * rows.keys[(page * kSlots + t) * kDim + c];
          }
        }
        const long double top = *std::max_element(logits.begin(), logits.end());
        long double sum = 0;
        for (const long double x : logits) sum += std::exp(x - top);
        const LogInterval interval = BoundLogMass(ShapeOfLogits(q, summary.View()));
        EXPECT_TRUE(interval.lo <= top + std::log(sum) && top + std::log(sum) <= interval.hi)
            << "page " << page << ": [" << interval.lo << ", " << interval.hi << "]";
        EXPECT_NE(interval.statement.standing, Standing::kNotFinite);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, StoredSummary, ::testing::Values(DType::kF32, DType::kF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST(StoredSummaryNumbers, WhatF16CannotHoldLeavesItsPageWithoutBounds) {
  ThreadPool threads(1);
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity,
                            65536.0f, -65536.0f, -1e30f}) {
      PagedLayer layer({2, 1, kDim, kSlots, 3 * kSlots}, StoredSummaryPlanes(), dtype, 3);
      layer.key(kSlots + 9, 1)[5] = bad;
      layer.key(kSlots + 9, 1)[6] = 65504;
      layer.Store(threads);
      PageSummary summary;
      std::vector<float> row(kDim);
      for (int head = 0; head < 2; ++head) {
        for (int64_t page = 0; page < 3; ++page) {
          const bool reached = head == 1 && page == 1;
          for (const Plane plane : {Plane::kKeyMean, Plane::kKeyDeviation, Plane::kKeyBox}) {
            for (int r = 0; r < (plane == Plane::kKeyBox ? 2 : 1); ++r) {
              LoadKeyStatistics(layer.View(), plane, r, page, head, row);
              for (int c = 0; c < kDim; ++c) {
                EXPECT_EQ(std::isnan(row[c]), reached && c == 5) << bad;
                EXPECT_FALSE(std::isinf(row[c]));
              }
            }
          }
          LoadStoredSummary(layer.View(), page, head, &summary);
          const std::vector<double> q(kDim, 0.0);  // not even what weighs nothing is known
          EXPECT_EQ(ShapeOfLogits(q, summary.View()).finite, !reached) << bad;
        }
      }
    }
  }
}

}  // namespace
}  // namespace winnow
