#include "ops/prefill_attention.h"

#include <ggml-cpu.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "core/rng.h"
#include "ops/attention_state.h"
#include "ops/reference.h"

// The choice of targets comes before Highway.
// clang-format off
#include "ops/simd_targets.h"
#include <hwy/highway.h>
// clang-format on

namespace winnow {
namespace {

constexpr double kUnit = 0x1p-24;  // half an ulp of f32 at 1
constexpr int64_t kTile = 128;     // tokens under one maximum

// Random keys and values in pages scattered over a pool. Pages and slots that hold no token are all
// ones, a NaN in every dtype, so that whatever reads them shows.
class Cache {
 public:
  Cache(PageLayout layout, int64_t n_tokens, uint64_t seed)
      : layout_(layout),
        n_tokens_(n_tokens),
        values_(2 * layout.kv_heads * n_tokens * layout.head_dim) {
    const int64_t n_pages = (n_tokens + layout.slots - 1) / layout.slots;
    std::vector<PageId> all(static_cast<size_t>(2 * n_pages + 1));
    std::iota(all.begin(), all.end(), 0);
    Rng rng(seed);
    for (size_t i = all.size() - 1; i > 0; --i) std::swap(all[i], all[rng.Below(i + 1)]);
    pages_.assign(all.begin(), all.begin() + n_pages);
    memory_.Resize(all.size() * layout.page_bytes);
    std::memset(memory_.data(), 0xff, memory_.size());
    std::vector<float> row(static_cast<size_t>(layout.head_dim));
    for (int64_t token = 0; token < n_tokens; ++token) {
      for (int head = 0; head < layout.kv_heads; ++head) {
        for (bool value : {false, true}) {
          for (float& x : row) x = static_cast<float>(rng.Normal());
          Store(value, head, token, row);
        }
      }
    }
  }

  // Stores a row [D] in the cache's type and remembers what that leaves of it.
  void Store(bool value, int head, int64_t token, const std::vector<float>& row) {
    std::byte* const block = memory_.data() + pages_[token / layout_.slots] * layout_.page_bytes +
                             (value ? layout_.ValueOffset(head) : layout_.KeyOffset(head));
    std::byte* const at = block + (token % layout_.slots) * layout_.row_bytes;
    double* const stored = values_.data() + Index(value, head, token);
    if (layout_.dtype == DType::kF32) {
      std::memcpy(at, row.data(), layout_.row_bytes);
      std::copy(row.begin(), row.end(), stored);
      return;
    }
    const ggml_type type = layout_.dtype == DType::kF16 ? GGML_TYPE_F16 : GGML_TYPE_Q8_0;
    std::vector<float> rounded(row.size());
    ggml_get_type_traits_cpu(type)->from_float(row.data(), at, layout_.head_dim);
    ggml_get_type_traits(type)->to_float(at, rounded.data(), layout_.head_dim);
    std::copy(rounded.begin(), rounded.end(), stored);
  }

  PagedKv View() const {
    return {.layout = &layout_, .base = memory_.data(), .pages = pages_, .n_tokens = n_tokens_};
  }
  TensorView<const double, 2> Rows(bool value, int head, int64_t begin, int64_t end) const {
    return {values_.data() + Index(value, head, begin), {end - begin, layout_.head_dim}};
  }
  const PageLayout& layout() const { return layout_; }
  void ReleaseBefore(int64_t token) {
    for (int64_t page = 0; page < token / layout_.slots; ++page) pages_[page] = kNoPage;
  }

 private:
  int64_t Index(bool value, int head, int64_t token) const {
    return (((value ? 1 : 0) * layout_.kv_heads + head) * n_tokens_ + token) * layout_.head_dim;
  }

  PageLayout layout_;
  int64_t n_tokens_;
  std::vector<double> values_;  // [k|v][K][tokens][D]
  std::vector<PageId> pages_;
  AlignedBuffer<std::byte> memory_;
};

struct Result {
  std::vector<float> out;       // [T, H, D]
  std::vector<float> log_mass;  // [T, H]
  AttentionAccount account;
};

// Queries of a chunk and the ranges that they see.
struct Chunk {
  std::vector<float> q;  // [T, H, D]
  std::vector<int64_t> begin, end;
  int64_t query_heads = 0;

  // T queries, the last tokens of the `depth + T` in the cache, causal, within `window` if that is
  // not 0.
  Chunk(int64_t n, int64_t depth, int64_t window, int64_t query_heads_in, int64_t head_dim)
      : q(static_cast<size_t>(n * query_heads_in * head_dim)), query_heads(query_heads_in) {
    Rng rng(5);
    for (float& x : q) x = static_cast<float>(rng.Normal());
    for (int64_t t = 0; t < n; ++t) {
      end.push_back(depth + t + 1);
      begin.push_back(window == 0 ? 0 : std::max<int64_t>(0, depth + t + 1 - window));
    }
  }
  int64_t size() const { return static_cast<int64_t>(begin.size()); }
};

float Scale(const Cache& cache) {
  return 1.0f / std::sqrt(static_cast<float>(cache.layout().head_dim));
}

// Queries [first, last) of the chunk in one call.
Result Attend(int n_threads, const Cache& cache, const Chunk& chunk, int64_t first, int64_t last) {
  const int64_t row = chunk.query_heads * cache.layout().head_dim;
  Result result;
  result.out.assign(static_cast<size_t>((last - first) * row), -1.0f);
  result.log_mass.assign(static_cast<size_t>((last - first) * chunk.query_heads), -1.0f);
  ThreadPool pool(n_threads);
  PrefillWorkspace workspace;
  const std::array<int64_t, 3> shape{last - first, chunk.query_heads, cache.layout().head_dim};
  PrefillAttention(pool,
                   {.q = {chunk.q.data() + first * row, shape},
                    .out = {result.out.data(), shape},
                    .kv = cache.View(),
                    .begin = std::span(chunk.begin).subspan(first, last - first),
                    .end = std::span(chunk.end).subspan(first, last - first),
                    .scale = Scale(cache),
                    .log_mass = result.log_mass.data()},
                   workspace, &result.account);
  return result;
}

Result Attend(int n_threads, const Cache& cache, const Chunk& chunk) {
  return Attend(n_threads, cache, chunk, 0, chunk.size());
}

// What an error may come to. To first order in u = 2^-24, with A the largest Σ|scale·q·k| of the
// row's tokens, n their number and N the tiles they lie in, and two roundings a multiply-add (there
// may be no FMA):
//   score       2·D products and sums, scaling q (2), subtracting the maximum (2):  (2D + 4)·A
//   its weight  exp2 (2), and N changes of the maximum, whose differences add up to at most 2A:
//   each
//               exp2 (2) and product (1)                                       2 + 2A + 3N
//   sums        at most 2(n + N) for the values, kTile + 2N for the weights, 2 for the division
// A relative error e of each weight moves a weighted mean of v by at most 2e·mean|v|, and the
// logarithm of their sum by e; log_mass is rounded once. Where errors are random, a sum of m of
// them comes to about sqrt(m) (Higham and Mary 2019): the root of the sum of squares over all
// outputs is held to that, times 4.
struct Bound {
  double out;  // times mean|v|
  double log_mass;
};
Bound ErrorBound(double dims, double a, double n, double tiles, double log_mass) {
  const double weight = (2 * dims + 4) * a + 2 + 2 * a + 3 * tiles;
  const double sum = kTile + 2 * tiles;
  return {.out = 1.01 * kUnit * (2 * weight + 2 * (n + tiles) + sum + 2),
          .log_mass = 1.01 * kUnit * (weight + sum + std::abs(log_mass))};
}

struct ErrorSquares {
  double error = 0;
  double allowed = 0;
};

void ExpectRowNear(const Cache& cache, const Chunk& chunk, const Result& result, int64_t t,
                   int64_t h, ErrorSquares* squares) {
  const int64_t dim = cache.layout().head_dim;
  const int head = static_cast<int>(h / (chunk.query_heads / cache.layout().kv_heads));
  const int64_t row = t * chunk.query_heads + h;
  const std::vector<double> q(chunk.q.begin() + row * dim, chunk.q.begin() + (row + 1) * dim);
  const auto k = cache.Rows(false, head, chunk.begin[t], chunk.end[t]);
  const auto v = cache.Rows(true, head, chunk.begin[t], chunk.end[t]);
  const int64_t n = k.shape[0];
  std::vector<double> expected(q.size());
  const double log_mass = reference::Attention(q, k, v, Scale(cache), expected);
  if (n == 0) {
    EXPECT_EQ(result.log_mass[row], kEmptyLogMass);
    for (int64_t d = 0; d < dim; ++d) EXPECT_EQ(result.out[row * dim + d], 0.0f);
    return;
  }
  // mean|v|, by the oracle, and A.
  std::vector<double> magnitudes(v.data, v.data + v.size());
  for (double& x : magnitudes) x = std::abs(x);
  std::vector<double> mean(q.size());
  reference::Attention(q, k, {magnitudes.data(), v.shape}, Scale(cache), mean);
  double a = 0;
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (int64_t d = 0; d < dim; ++d) sum += std::abs(q[d] * k.row(i)[d]);
    a = std::max(a, sum * Scale(cache));
  }
  const int64_t n_tiles = n / kTile + 2;
  const auto tiles = static_cast<double>(n_tiles);
  const Bound bound =
      ErrorBound(static_cast<double>(dim), a, static_cast<double>(n), tiles, log_mass);
  const Bound typical = ErrorBound(std::sqrt(dim), a, std::sqrt(n), std::sqrt(tiles), log_mass);
  EXPECT_NEAR(result.log_mass[row], log_mass, bound.log_mass) << "query " << t << " head " << h;
  for (int64_t d = 0; d < dim; ++d) {
    const double error = result.out[row * dim + d] - expected[d];
    ASSERT_LE(std::abs(error), bound.out * mean[d])
        << "query " << t << " head " << h << " dimension " << d;
    squares->error += error * error;
    squares->allowed += std::pow(4 * typical.out * mean[d], 2);
  }
}

void ExpectNear(const Cache& cache, const Chunk& chunk, const Result& result) {
  ErrorSquares squares;
  for (int64_t t = 0; t < chunk.size(); ++t) {
    for (int64_t h = 0; h < chunk.query_heads; ++h) {
      ExpectRowNear(cache, chunk, result, t, h, &squares);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  EXPECT_LE(squares.error, squares.allowed);
}

struct Shape {
  int group, kv_heads, head_dim, slots;
  int64_t n, depth, window;
};

constexpr Shape kShapes[] = {
    {1, 1, 64, 16, 1, 0, 0},      {3, 2, 64, 32, 1, 200, 0},   {3, 3, 64, 32, 130, 0, 0},
    {3, 1, 64, 16, 33, 300, 0},   {4, 2, 128, 32, 33, 117, 0}, {8, 1, 128, 16, 7, 500, 0},
    {1, 2, 80, 32, 130, 5, 0},    {4, 1, 80, 16, 33, 130, 40}, {3, 1, 256, 32, 33, 70, 0},
    {8, 1, 256, 16, 7, 250, 100}, {5, 1, 20, 4, 40, 9, 0},     {1, 1, 1, 1, 7, 3, 0},
    {3, 1, 64, 32, 130, 150, 1},  {3, 1, 64, 32, 130, 0, 50},  {4, 1, 64, 32, 33, 400, 129},
    {50, 1, 32, 32, 7, 20, 0},    {100, 1, 32, 16, 3, 130, 0}};

class EveryTarget : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(EveryTarget, AgreesWithPlainAttention) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kQ8_0}) {
    for (const Shape& s : kShapes) {
      if (dtype == DType::kQ8_0 && s.head_dim % kQ8BlockValues != 0) continue;
      SCOPED_TRACE(testing::Message()
                   << DTypeName(dtype) << " R " << s.group << " D " << s.head_dim << " T " << s.n
                   << " depth " << s.depth << " window " << s.window);
      Cache cache(PageLayout(s.kv_heads, s.slots, s.head_dim, dtype), s.depth + s.n, 3);
      const Chunk chunk(s.n, s.depth, s.window, s.group * s.kv_heads, s.head_dim);
      cache.ReleaseBefore(chunk.begin[0]);
      const Result result = Attend(2, cache, chunk);
      ExpectNear(cache, chunk, result);
      const int64_t tokens = s.depth + s.n - chunk.begin[0];
      EXPECT_EQ(result.account.tokens_read, tokens);
      EXPECT_EQ(result.account.bytes_read, cache.layout().TokenBytes(tokens));
      EXPECT_EQ(result.account.bytes_dense, result.account.bytes_read);
    }
  }
}

TEST_P(EveryTarget, RowsDependOnNeitherThreadsNorChunks) {
  const Cache cache(PageLayout(2, 32, 64, DType::kF16), 400, 4);
  for (int64_t window : {0, 150}) {
    const Chunk chunk(200, 200, window, 6, 64);
    const Result whole = Attend(1, cache, chunk);
    for (int n_threads : {2, 3, 5}) {
      const Result other = Attend(n_threads, cache, chunk);
      EXPECT_EQ(other.out, whole.out);
      EXPECT_EQ(other.log_mass, whole.log_mass);
    }
    Result parts;
    for (int64_t first = 0; first < chunk.size(); first = first * 2 + 7) {
      const Result part = Attend(2, cache, chunk, first, std::min(chunk.size(), first * 2 + 7));
      parts.out.insert(parts.out.end(), part.out.begin(), part.out.end());
      parts.log_mass.insert(parts.log_mass.end(), part.log_mass.begin(), part.log_mass.end());
    }
    EXPECT_EQ(parts.out, whole.out);
    EXPECT_EQ(parts.log_mass, whole.log_mass);
  }
}

// Every 7th key from 3 on is not a finite number in its first dimension; the rows that see one give
// what plain attention gives: NaN for NaN and for +inf scores, and for -inf scores no weight.
TEST_P(EveryTarget, NonFiniteScoresSurface) {
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Cache cache(PageLayout(1, 16, 64, DType::kF32), 140, 6);
    const Chunk chunk(140, 0, 4, 3, 64);
    std::vector<float> key(64, 0.25f);
    key[0] = bad;
    for (int64_t token = 3; token < 140; token += 7) cache.Store(false, 0, token, key);
    const Result result = Attend(2, cache, chunk);
    int64_t n_nan = 0;
    for (int64_t row = 0; row < 140 * 3; ++row) {
      const int64_t t = row / 3;
      const std::vector<double> q(chunk.q.begin() + row * 64, chunk.q.begin() + (row + 1) * 64);
      std::vector<double> expected(64);
      const double log_mass = reference::Attention(
          q, cache.Rows(false, 0, chunk.begin[t], chunk.end[t]),
          cache.Rows(true, 0, chunk.begin[t], chunk.end[t]), Scale(cache), expected);
      EXPECT_EQ(std::isnan(result.log_mass[row]), std::isnan(log_mass)) << "row " << row;
      for (int64_t d = 0; d < 64; ++d) {
        EXPECT_EQ(std::isnan(result.out[row * 64 + d]), std::isnan(expected[d])) << "row " << row;
      }
      n_nan += std::isnan(log_mass) ? 1 : 0;
    }
    EXPECT_GT(n_nan, 100);
    EXPECT_LT(n_nan, 300);
  }
}

TEST_P(EveryTarget, ANaNQueryStaysInItsRow) {
  const Cache cache(PageLayout(1, 16, 64, DType::kF16), 40, 6);
  Chunk chunk(40, 0, 0, 3, 64);
  constexpr int64_t kRow = 17;
  chunk.q[kRow * 64 + 5] = std::numeric_limits<float>::quiet_NaN();
  const Result result = Attend(2, cache, chunk);
  for (int64_t row = 0; row < 120; ++row) {
    EXPECT_EQ(std::isnan(result.log_mass[row]), row == kRow);
    for (int64_t d = 0; d < 64; ++d) EXPECT_EQ(std::isnan(result.out[row * 64 + d]), row == kRow);
  }
}

TEST_P(EveryTarget, EmptyRangesGiveTheIdentity) {
  const Cache cache(PageLayout(2, 16, 64, DType::kF16), 50, 7);
  Chunk chunk(4, 46, 0, 6, 64);
  chunk.begin = {0, 0, 20, 50};
  chunk.end = {0, 1, 20, 50};
  ExpectNear(cache, chunk, Attend(2, cache, chunk));
  chunk.begin = chunk.end = {9, 9, 9, 9};
  ExpectNear(cache, chunk, Attend(2, cache, chunk));

  const Result none = Attend(2, cache, Chunk(0, 50, 0, 6, 64));
  EXPECT_EQ(none.account.tokens_read, 0);
  const Cache no_tokens(PageLayout(2, 16, 64, DType::kF16), 0, 7);
  chunk.begin = chunk.end = {0, 0, 0, 0};
  ExpectNear(no_tokens, chunk, Attend(2, no_tokens, chunk));
}

std::vector<int64_t> Targets() {
  std::vector<int64_t> targets;
  for (int64_t all = hwy::SupportedTargets() & HWY_TARGETS; all != 0; all &= all - 1) {
    targets.push_back(all & -all);
  }
  return targets;
}
INSTANTIATE_TEST_SUITE_P(PrefillAttention, EveryTarget, testing::ValuesIn(Targets()),
                         [](const auto& info) { return std::string(hwy::TargetName(info.param)); });

TEST(PrefillAttentionDeathTest, RefusesRangesThatFallOrLeaveTheCache) {
  const Cache cache(PageLayout(1, 16, 64, DType::kF16), 20, 7);
  Chunk chunk(2, 18, 0, 1, 64);
  chunk.end = {20, 19};
  EXPECT_DEATH(Attend(1, cache, chunk), "ranges fall");
  chunk.end = {20, 21};
  EXPECT_DEATH(Attend(1, cache, chunk), "of 20");
}

}  // namespace
}  // namespace winnow
