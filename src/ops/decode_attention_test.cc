#include "ops/decode_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <ostream>
#include <vector>

#include "core/rng.h"
#include "ops/attention_state.h"
#include "ops/kv_store.h"
#include "ops/kv_store_cpu.h"
#include "ops/reference.h"

namespace winnow {
namespace {

constexpr double kUnit = 0x1p-24;  // half the distance from 1 to the next f32
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Shape {
  int query_heads, kv_heads, head_dim, slots;
  DType dtype = DType::kF16;
};

std::ostream& operator<<(std::ostream& os, const Shape& s) {
  return os << "H=" << s.query_heads << " K=" << s.kv_heads << " D=" << s.head_dim
            << " G=" << s.slots << " " << DTypeName(s.dtype);
}

// Seeded tokens in pages of shuffled order. All bytes outside rows are 0xff: NaN in every type.
class Cache {
 public:
  Cache(const Shape& shape, int64_t n_tokens, uint64_t seed, double key_size = 1.0)
      : layout_(shape.kv_heads, shape.slots, shape.head_dim, shape.dtype), n_tokens_(n_tokens) {
    Rng rng(seed);
    const int64_t n_pages = n_tokens / shape.slots + 1;
    pages_.resize(static_cast<size_t>(n_pages));
    std::iota(pages_.begin(), pages_.end(), 0);
    for (size_t i = pages_.size() - 1; i > 0; --i) std::swap(pages_[i], pages_[rng.Below(i + 1)]);
    memory_.Resize(static_cast<size_t>(n_pages) * layout_.page_bytes);
    std::memset(memory_.data(), 0xff, memory_.size());
    std::vector<float> row(static_cast<size_t>(shape.head_dim));
    for (int64_t token = 0; token < n_tokens; ++token) {
      for (int head = 0; head < shape.kv_heads; ++head) {
        for (float& x : row) x = static_cast<float>(key_size * rng.Normal());
        SetRow(layout_.KeyOffset(head), token, row);
        for (float& x : row) x = static_cast<float>(rng.Normal());
        SetRow(layout_.ValueOffset(head), token, row);
      }
    }
  }

  PagedKv View() const {
    return {.layout = &layout_, .base = memory_.data(), .pages = pages_, .n_tokens = n_tokens_};
  }

  void SetKey(int head, int64_t token, float value) {
    SetRow(layout_.KeyOffset(head), token,
           std::vector<float>(static_cast<size_t>(layout_.head_dim), value));
  }

 private:
  void SetRow(size_t offset, int64_t token, const std::vector<float>& row) {
    std::byte* page = memory_.data() + pages_[token / layout_.slots] * layout_.page_bytes;
    StoreRowCpu(layout_.dtype, row.data(), layout_.head_dim,
                page + offset + token % layout_.slots * layout_.row_bytes);
  }

  PageLayout layout_;
  int64_t n_tokens_;
  std::vector<PageId> pages_;
  AlignedBuffer<std::byte> memory_;
};

struct Result {
  std::vector<float> out;
  std::vector<float> log_mass;
  bool operator==(const Result&) const = default;
};

std::vector<float> RandomQuery(const Shape& shape, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> q(static_cast<size_t>(shape.query_heads * shape.head_dim));
  for (float& x : q) x = static_cast<float>(rng.Normal());
  return q;
}

float Scale(const Shape& shape) { return 1.0f / std::sqrt(static_cast<float>(shape.head_dim)); }

struct Range {
  int64_t begin, end;
};

// All ranges as one call, each with the same query.
std::vector<Result> Attend(ThreadPool& pool, const Shape& shape, const Cache& cache,
                           const std::vector<float>& q, const std::vector<Range>& ranges,
                           AttentionAccount* account = nullptr) {
  std::vector<Result> results(ranges.size());
  std::vector<DecodeQuery> queries;
  for (size_t i = 0; i < ranges.size(); ++i) {
    results[i].out.assign(q.size(), kNaN);
    results[i].log_mass.assign(static_cast<size_t>(shape.query_heads), kNaN);
    queries.push_back({.q = q.data(),
                       .kv = cache.View(),
                       .begin = ranges[i].begin,
                       .end = ranges[i].end,
                       .out = results[i].out.data(),
                       .log_mass = results[i].log_mass.data()});
  }
  DecodeWorkspace workspace;
  DecodeAttention(pool, queries, {.query_heads = shape.query_heads, .scale = Scale(shape)},
                  workspace, account);
  return results;
}

// Compares with double precision over the values as stored. With u = 2^-24, S the largest sum of
// |scale q_d k_d| of a token and n the number of splits, a score is wrong by at most E = (D + 3) u
// S (dot product, scaled query). The weight of a token relative to the others is then wrong by 2E,
// by the rounding of (score - max) log2(e) (4 u S twice), by exp2 (4 u), by the sums over a split
// (256 u, numerator and denominator) and by the merges, each with u (|log mass| + 16). `out` is a
// mean of |v| with these weights.
void ExpectMatchesReference(const Shape& shape, const Cache& cache, const std::vector<float>& q,
                            Range range, const Result& result) {
  const int64_t dim = shape.head_dim;
  const int64_t n = range.end - range.begin;
  const int group = shape.query_heads / shape.kv_heads;
  const double scale = Scale(shape);
  std::vector<float> row(static_cast<size_t>(2 * dim));
  std::vector<double> k(static_cast<size_t>(n * dim));
  std::vector<double> v(k.size());
  std::vector<double> v_abs(k.size());
  std::vector<double> out(static_cast<size_t>(dim));
  std::vector<double> out_abs(out.size());
  for (int h = 0; h < shape.query_heads; ++h) {
    std::vector<double> head_q(q.begin() + h * dim, q.begin() + (h + 1) * dim);
    double size = 0;  // S
    for (int64_t i = 0; i < n; ++i) {
      LoadKv(cache.View(), h / group, range.begin + i, row.data(), row.data() + dim);
      double sum = 0;
      for (int64_t d = 0; d < dim; ++d) {
        k[i * dim + d] = row[d];
        v[i * dim + d] = row[dim + d];
        v_abs[i * dim + d] = std::abs(v[i * dim + d]);
        sum += scale * std::abs(head_q[d] * k[i * dim + d]);
      }
      size = std::max(size, sum);
    }
    const double log_mass =
        reference::Attention(head_q, {k.data(), {n, dim}}, {v.data(), {n, dim}}, scale, out);
    reference::Attention(head_q, {k.data(), {n, dim}}, {v_abs.data(), {n, dim}}, scale, out_abs);
    if (n == 0) {
      EXPECT_EQ(result.log_mass[h], kEmptyLogMass);
      for (int64_t d = 0; d < dim; ++d) EXPECT_EQ(result.out[h * dim + d], 0.0f);
      continue;
    }
    const double n_splits = static_cast<double>(n) / 256 + 2;
    const double error = kUnit * (2 * (static_cast<double>(dim) + 3) * size + 8 * size + 4 +
                                  2 * 256 + n_splits * (std::abs(log_mass) + 16));
    ASSERT_NEAR(result.log_mass[h], log_mass, error) << shape << " head " << h;
    for (int64_t d = 0; d < dim; ++d) {
      ASSERT_NEAR(result.out[h * dim + d], out[d], error * out_abs[d])
          << shape << " [" << range.begin << ", " << range.end << ") head " << h << " dim " << d;
    }
  }
}

TEST(DecodeAttention, KvHeadsOfTheirOwnGiveTheSameBitsAsAllTogether) {
  const Shape shape{.query_heads = 12, .kv_heads = 4, .head_dim = 64, .slots = 32};
  const Cache cache(shape, 1000, 3);
  const std::vector<float> q = RandomQuery(shape, 4);
  ThreadPool pool(2);
  const Result whole = Attend(pool, shape, cache, q, {{0, 1000}})[0];
  Result parts{.out = std::vector<float>(q.size(), kNaN), .log_mass = std::vector<float>(12, kNaN)};
  std::vector<DecodeQuery> queries;
  for (const auto& [first, n] : std::vector<std::pair<int, int>>{{0, 1}, {1, 2}, {3, 1}}) {
    queries.push_back({.q = q.data() + static_cast<int64_t>(first) * 3 * 64,
                       .kv = cache.View(),
                       .first_head = first,
                       .n_heads = n,
                       .begin = 0,
                       .end = 1000,
                       .out = parts.out.data() + static_cast<int64_t>(first) * 3 * 64,
                       .log_mass = parts.log_mass.data() + static_cast<int64_t>(first) * 3});
  }
  DecodeWorkspace workspace;
  DecodeAttention(pool, queries, {.query_heads = 12, .scale = Scale(shape)}, workspace, nullptr);
  EXPECT_EQ(parts, whole);
}

TEST(DecodeAttention, MatchesTheReferenceOverShapesAndTypes) {
  ThreadPool pool(2);
  std::vector<Shape> shapes;
  for (DType dtype : {DType::kF16, DType::kF32, DType::kQ8_0}) {
    for (int slots : {16, 32, 64}) shapes.push_back({9, 3, 64, slots, dtype});
    // Every size of a block of heads, and two blocks.
    for (int group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16}) {
      shapes.push_back({2 * group, 2, 96, 32, dtype});
    }
    shapes.push_back({8, 2, 128, 32, dtype});
    shapes.push_back({4, 1, 256, 32, dtype});
    if (dtype == DType::kQ8_0) continue;  // the others are not whole blocks
    for (int dim : {1, 3, 8, 17, 40, 72, 80, 100, 112, 200}) {
      shapes.push_back({6, 2, dim, 32, dtype});
      shapes.push_back({2, 2, dim, 16, dtype});
    }
    shapes.push_back({3, 3, 48, 5, dtype});
    shapes.push_back({14, 2, 80, 300, dtype});
  }
  const std::vector<Range> ranges = {{0, 600}, {0, 1}, {3, 299}, {255, 257}, {300, 300}};
  for (const Shape& shape : shapes) {
    const Cache cache(shape, 600, 1);
    const std::vector<float> q = RandomQuery(shape, 2);
    const std::vector<Result> results = Attend(pool, shape, cache, q, ranges);
    for (size_t i = 0; i < ranges.size(); ++i) {
      ExpectMatchesReference(shape, cache, q, ranges[i], results[i]);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(DecodeAttention, MatchesTheReferenceOverRanges) {
  ThreadPool pool(2);
  const Shape shape{9, 3, 64, 32};
  const Cache cache(shape, 1100, 3);
  const std::vector<float> q = RandomQuery(shape, 4);
  std::vector<Range> ranges;
  for (int64_t end :
       {0, 1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257, 512, 1100}) {
    for (int64_t begin : {int64_t{0}, end / 2, end - 1, end}) {
      if (begin >= 0) ranges.push_back({begin, end});
    }
  }
  const std::vector<Result> results = Attend(pool, shape, cache, q, ranges);
  for (size_t i = 0; i < ranges.size(); ++i) {
    ExpectMatchesReference(shape, cache, q, ranges[i], results[i]);
  }
}

TEST(DecodeAttention, PartsMergeToTheWhole) {
  ThreadPool pool(1);
  const Shape shape{4, 2, 64, 32};
  const Cache cache(shape, 700, 5);
  const std::vector<float> q = RandomQuery(shape, 6);
  const std::vector<Result> parts =
      Attend(pool, shape, cache, q, {{0, 10}, {10, 333}, {333, 333}, {333, 700}});
  Result merged = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    for (int h = 0; h < shape.query_heads; ++h) {
      MergeAttentionState(merged.out.data() + h * 64, &merged.log_mass[h],
                          parts[i].out.data() + h * 64, parts[i].log_mass[h], 64);
    }
  }
  ExpectMatchesReference(shape, cache, q, {0, 700}, merged);
}

TEST(DecodeAttention, BitsDependNeitherOnThreadsNorOnTheBatch) {
  const Shape shape{9, 3, 64, 32};
  const Cache cache(shape, 3000, 7);
  const std::vector<float> q = RandomQuery(shape, 8);
  const std::vector<Range> ranges = {{0, 3000}, {17, 2500}, {0, 0},
                                     {5, 40},   {0, 256},   {2999, 3000}};
  ThreadPool one(1);
  std::vector<Result> alone;
  alone.reserve(ranges.size());
  for (const Range& range : ranges) alone.push_back(Attend(one, shape, cache, q, {range})[0]);
  for (int n_threads : {1, 2, 3, 5}) {
    ThreadPool pool(n_threads);
    for (int repetition = 0; repetition < 5; ++repetition) {
      EXPECT_EQ(Attend(pool, shape, cache, q, ranges), alone) << n_threads;
    }
  }
}

TEST(DecodeAttention, NanScoresSurfaceInTheirHeadsOnly) {
  ThreadPool pool(2);
  const Shape shape{4, 2, 64, 32};
  for (int64_t token : {0, 100, 255, 256, 599}) {
    Cache cache(shape, 600, 9);
    cache.SetKey(1, token, kNaN);
    const Result result = Attend(pool, shape, cache, RandomQuery(shape, 10), {{0, 600}})[0];
    for (int h = 0; h < shape.query_heads; ++h) {
      EXPECT_EQ(std::isnan(result.log_mass[h]), h >= 2) << token;
      for (int d = 0; d < 64; ++d) EXPECT_EQ(std::isnan(result.out[h * 64 + d]), h >= 2) << token;
    }
  }
}

TEST(DecodeAttention, HugeScoresDoNotOverflow) {
  ThreadPool pool(2);
  const Shape shape{3, 1, 64, 32, DType::kF32};
  const Cache cache(shape, 600, 11, /*key_size=*/1e4);
  const std::vector<float> q = RandomQuery(shape, 12);
  const Result result = Attend(pool, shape, cache, q, {{0, 600}})[0];
  EXPECT_GT(*std::max_element(result.log_mass.begin(), result.log_mass.end()), 1e4f);
  ExpectMatchesReference(shape, cache, q, {0, 600}, result);
}

TEST(DecodeAttention, CountsWhatItReads) {
  ThreadPool pool(1);
  const Shape shape{9, 3, 64, 32};
  const Cache cache(shape, 600, 13);
  AttentionAccount account{.tokens_read = 1};
  Attend(pool, shape, cache, RandomQuery(shape, 14), {{0, 600}, {100, 150}, {7, 7}}, &account);
  EXPECT_EQ(account.tokens_read, 651);
  EXPECT_EQ(account.tokens_resident, 650);
  EXPECT_EQ(account.bytes_read, 650 * 3 * 2 * 64 * 2);
  EXPECT_EQ(account.bytes_dense, account.bytes_read);
}

TEST(DecodeAttention, NoQueriesAndNoLogMassAreAllowed) {
  ThreadPool pool(1);
  DecodeWorkspace workspace;
  DecodeAttention(pool, {}, {.query_heads = 9}, workspace, nullptr);
  const Shape shape{2, 1, 64, 32};
  const Cache cache(shape, 40, 15);
  const std::vector<float> q = RandomQuery(shape, 16);
  std::vector<float> out(q.size());
  const DecodeQuery query{
      .q = q.data(), .kv = cache.View(), .begin = 0, .end = 40, .out = out.data()};
  DecodeAttention(pool, {&query, 1}, {.query_heads = 2, .scale = Scale(shape)}, workspace, nullptr);
  EXPECT_EQ(out, Attend(pool, shape, cache, q, {{0, 40}})[0].out);
}

TEST(DecodeAttentionDeathTest, RangesOutsideTheCacheAreCaught) {
  ThreadPool pool(1);
  const Shape shape{2, 1, 64, 32};
  const Cache cache(shape, 40, 17);
  EXPECT_DEATH(Attend(pool, shape, cache, RandomQuery(shape, 18), {{0, 41}}), "\\[0, 41\\) of 40");
}

}  // namespace
}  // namespace winnow
