#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "core/byte_size.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "core/rng.h"
#include "core/tensor_view.h"

namespace winnow {
namespace {

TEST(ThreadPool, RunsEveryThreadOnce) {
  for (int n : {1, 2, 3}) {
    ThreadPool pool(n);
    EXPECT_EQ(pool.size(), n);
    std::vector<int> calls(n, 0);
    for (int repeat = 0; repeat < 100; ++repeat) {
      pool.Run([&](int thread, int n_threads) {
        EXPECT_EQ(n_threads, n);
        ++calls[thread];
      });
    }
    EXPECT_THAT(calls, testing::Each(100));
  }
}

TEST(ThreadPool, ForEachRunsEveryTaskOnceAlsoAfterPause) {
  ThreadPool pool(2);
  for (int64_t n_tasks : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> calls(n_tasks);
    pool.Pause();
    pool.ForEach(n_tasks, [&](int64_t task, int /*thread*/) { ++calls[task]; });
    for (auto& c : calls) EXPECT_EQ(c, 1);
  }
}

TEST(ThreadPool, RefusesNoThreads) { EXPECT_THROW(ThreadPool(0), Error); }

TEST(DType, BytesAndNames) {
  EXPECT_EQ(RowBytes(DType::kF32, 64), 256u);
  EXPECT_EQ(RowBytes(DType::kF16, 64), 128u);
  EXPECT_EQ(RowBytes(DType::kQ8_0, 64), 68u);
  for (DType d : {DType::kF32, DType::kF16, DType::kQ8_0}) EXPECT_EQ(ParseDType(DTypeName(d)), d);
  EXPECT_THROW(ParseDType("f8"), Error);
}

TEST(ByteSize, Words) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(int64_t{156} << 20), "156 MiB");
  EXPECT_EQ(FormatBytes((int64_t{1} << 30) - 1), "1.0 GiB");
  EXPECT_EQ(FormatBytes(int64_t{5} << 40), "5.0 TiB");
}

TEST(ByteSize, DifferentCountsReadDifferently) {
  using Pair = std::pair<std::string, std::string>;
  constexpr int64_t kMiB = int64_t{1} << 20;
  EXPECT_EQ(FormatBytesApart(3 * kMiB, 2 * kMiB), Pair("3.0 MiB", "2.0 MiB"));
  EXPECT_EQ(FormatBytesApart(3 * kMiB, 3 * kMiB), Pair("3.0 MiB", "3.0 MiB"));
  EXPECT_EQ(FormatBytesApart(100 * kMiB + kMiB / 4, 100 * kMiB), Pair("100.2 MiB", "100.0 MiB"));
  EXPECT_EQ(FormatBytesApart(kMiB + 40000, kMiB), Pair("1.04 MiB", "1.00 MiB"));
  EXPECT_EQ(FormatBytesApart(kMiB + 1, kMiB), Pair("1048577 bytes", "1048576 bytes"));
  for (int64_t bytes = 1; bytes < int64_t{1} << 60; bytes = bytes * 5 / 3 + 1) {
    for (const int64_t more : {int64_t{1}, bytes / 10000, bytes / 500, bytes / 30}) {
      const auto [a, b] = FormatBytesApart(bytes + more, bytes);
      EXPECT_EQ(a == b, more == 0) << bytes << " and " << more << " more";
    }
  }
}

TEST(Hash, ChainsAndSeparates) {
  const std::byte a[] = {std::byte{1}, std::byte{2}};
  const Hash128 first = HashBytes(a);
  EXPECT_EQ(first, HashBytes(a));
  EXPECT_NE(first, HashBytes(a, first));
  EXPECT_NE(first, HashBytes(std::span(a, 1)));
  EXPECT_EQ(first.Hex().size(), 32u);
}

TEST(Rng, SameSeedSameNumbersAndPlausibleMoments) {
  Rng a(7);
  Rng b(7);
  double sum = 0;
  double squares = 0;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    const double x = a.Normal();
    ASSERT_EQ(x, b.Normal());
    sum += x;
    squares += x * x;
  }
  // Five standard errors of the mean and of the second moment.
  EXPECT_NEAR(sum / kDraws, 0.0, 5 / std::sqrt(kDraws));
  EXPECT_NEAR(squares / kDraws, 1.0, 5 * std::sqrt(2.0 / kDraws));
}

TEST(TensorView, RowsAndSlices) {
  std::vector<float> data(24);
  for (int i = 0; i < 24; ++i) data[i] = static_cast<float>(i);
  TensorView<float, 3> view(data.data(), {4, 3, 2});
  EXPECT_EQ(view.size(), 24);
  EXPECT_EQ(view.stride(0), 6);
  EXPECT_EQ(*view.row(2), 12.0f);
  TensorView<const float, 3> slice = view.Slice(1, 3);
  EXPECT_EQ(slice.shape[0], 2);
  EXPECT_EQ(*slice.row(1), 12.0f);
}

TEST(Memory, AnyRangeMayPreferHugePages) {
  std::vector<char> range(5000, 'x');
  PreferHugePages(range.data(), 0);
  PreferHugePages(range.data() + 1, 10);
  PreferHugePages(range.data() + 1, range.size() - 1);
  EXPECT_EQ(std::count(range.begin(), range.end(), 'x'), 5000);
}

TEST(Memory, PeakIsAtLeastCurrentAndSomethingIsAvailable) {
  EXPECT_GT(CurrentRssBytes(), 0u);
  EXPECT_GE(PeakRssBytes(), CurrentRssBytes() / 2);
  EXPECT_GT(AvailableMemoryBytes(), 1u << 20);
}

}  // namespace
}  // namespace winnow
