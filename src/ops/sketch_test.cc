#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/rng.h"
#include "kv/page_pool.h"
#include "ops/every_target_test.h"
#include "ops/kv_store.h"
#include "ops/page_planes.h"
#include "ops/sketch_scan.h"
#include "ops/sketch_values.h"
#include "ops/summary_scan.h"

namespace winnow {
namespace {

using ::winnow::testing::OnEveryByteTarget;

struct Shape {
  int kv_heads;
  int group;
  int dim;
  int slots;
  int64_t n_tokens;
};

// One sequence of one layer with random keys and values, channels of unlike ranges as models have.
struct Context {
  Context(const Shape& shape_in, PlaneSet planes, DType dtype = DType::kF32)
      : shape(shape_in),
        threads(2),
        pool(PageLayout(shape.kv_heads, shape.slots, shape.dim, dtype, planes), 64),
        kv(&pool, 1) {
    Rng rng(7);
    const int64_t row = static_cast<int64_t>(shape.kv_heads) * shape.dim;
    keys.resize(shape.n_tokens * row);
    values.resize(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto channel = static_cast<float>(i % shape.dim);
      keys[i] = static_cast<float>(rng.Normal()) * (1 + 0.2f * channel) - channel;
      values[i] = static_cast<float>(rng.Normal());
    }
    q.resize(static_cast<size_t>(shape.kv_heads) * shape.group * shape.dim);
    for (float& x : q) x = static_cast<float>(rng.Normal());
    Append(keys, values);
  }

  void Append(const std::vector<float>& new_keys, const std::vector<float>& new_values) {
    const int64_t first = kv.n_tokens(0);
    std::vector<int32_t> positions(shape.n_tokens);
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(first));
    ASSERT_TRUE(kv.Append(0, positions));
    StoreKv(&kv, 0, first, {new_keys.data(), {shape.n_tokens, shape.kv_heads, shape.dim}},
            {new_values.data(), {shape.n_tokens, shape.kv_heads, shape.dim}});
    UpdatePlanes(threads, &kv, 0, first, first + shape.n_tokens);
  }

  PagedKv View() const { return kv.View(0); }
  int64_t n_full() const { return kv.n_tokens(0) / shape.slots; }
  int query_heads() const { return shape.kv_heads * shape.group; }
  const PageLayout& layout() const { return pool.layout(); }

  Shape shape;
  ThreadPool threads;
  PagePool pool;
  SequenceKv kv;
  std::vector<float> keys, values, q;
};

constexpr float kScale = 0.05f;

struct Masses {
  Masses(const Context& context, bool with_weights)
      : max(context.query_heads() * context.n_full()),
        sum(max.size()),
        weights(with_weights ? max.size() * context.layout().slots : 0) {}
  PageMasses View(int64_t n_pages) {
    return {.n_pages = n_pages,
            .stride = n_pages,
            .max = max.data(),
            .sum = sum.data(),
            .weights = weights.empty() ? nullptr : weights.data()};
  }
  std::vector<float> max, sum;
  std::vector<uint8_t> weights;
};

Masses Scan(Context& context, int bits, bool with_weights) {
  Masses masses(context, with_weights);
  PageScanWorkspace workspace;
  const PageScanQuery query{
      .q = context.q.data(), .kv = context.View(), .masses = masses.View(context.n_full())};
  SketchScan(context.threads, std::span(&query, 1),
             {.query_heads = context.query_heads(), .scale = kScale}, bits, workspace, nullptr);
  return masses;
}

// Scores of the sketch in double: what the kernel approximates.
std::vector<double> SketchScores(const Context& context, int bits, int query_head, int64_t page) {
  const Shape& shape = context.shape;
  std::vector<float> row(shape.dim);
  std::vector<double> scores;
  const std::byte* plane =
      context.View().PlaneOf(KeySketchPlane(bits), page, query_head / shape.group);
  for (int slot = 0; slot < shape.slots; ++slot) {
    LoadSketchRow(context.layout(), plane, bits, true, slot, row);
    double score = 0;
    for (int c = 0; c < shape.dim; ++c) {
      score += static_cast<double>(kScale) * context.q[query_head * shape.dim + c] * row[c];
    }
    scores.push_back(score);
  }
  return scores;
}

// How far the kernel's scores may be from the sketch's: products q·step are rounded to units, of
// which the largest q times the largest step of some group of channels have 127; so each channel is
// off by at most 0.502 units times the largest code (centred). Floats add 1e-5 of the scores'
// scale.
double ScoreTolerance(const Context& context, int bits, int query_head, int64_t page) {
  const Shape& shape = context.shape;
  const std::byte* plane =
      context.View().PlaneOf(KeySketchPlane(bits), page, query_head / shape.group);
  std::vector<float> low(shape.dim);
  double scale = 0;
  std::vector<double> largest_q(SketchFormat::kStepGroups);
  std::vector<double> largest_range(SketchFormat::kStepGroups);
  std::vector<std::vector<float>> rows(shape.slots, std::vector<float>(shape.dim));
  for (int t = 0; t < shape.slots; ++t) {
    LoadSketchRow(context.layout(), plane, bits, true, t, rows[t]);
  }
  for (int c = 0; c < shape.dim; ++c) {
    float min = rows[0][c];
    float max = rows[0][c];
    for (const auto& row : rows) {
      min = std::min(min, row[c]);
      max = std::max(max, row[c]);
    }
    const double q = std::abs(kScale * context.q[query_head * shape.dim + c]);
    const int group = c >> SketchFormat::GroupShift(context.layout().padded_dim);
    largest_q[group] = std::max(largest_q[group], q);
    largest_range[group] = std::max<double>(largest_range[group], max - min);
    scale += q * std::max(std::abs(min), std::abs(max));
  }
  double largest = 0;
  for (size_t i = 0; i < largest_q.size(); ++i)
    largest = std::max(largest, largest_q[i] * largest_range[i]);
  // The scale of a group is up to a 255th and an f16 rounding more than its largest step.
  const double levels = bits == 8 ? 0 : largest * 1.01 / 508 * shape.dim;
  return levels + 1e-5 * scale;
}

void CheckScan(const Shape& shape) {
  Context context(shape, {Plane::kKeys2, Plane::kKeys4, Plane::kKeys8});
  for (const int bits : {2, 4, 8}) {
    const Masses masses = Scan(context, bits, true);
    for (int head = 0; head < context.query_heads(); ++head) {
      for (int64_t page = 0; page < context.n_full(); ++page) {
        const std::vector<double> scores = SketchScores(context, bits, head, page);
        const double tolerance = ScoreTolerance(context, bits, head, page);
        const double max = *std::max_element(scores.begin(), scores.end());
        double sum = 0;
        for (double s : scores) sum += std::exp(s - max);
        const int64_t at = head * context.n_full() + page;
        EXPECT_NEAR(masses.max[at], max, tolerance) << bits << " bits, page " << page;
        EXPECT_NEAR(masses.max[at] + std::log(masses.sum[at]), max + std::log(sum), tolerance);
        for (int t = 0; t < shape.slots; ++t) {
          // A weight rounds by half a level and its exponent is off by twice the tolerance.
          EXPECT_NEAR(masses.weights[at * shape.slots + t], 255 * std::exp(scores[t] - max),
                      0.6 + 255 * std::expm1(2 * tolerance));
        }
      }
    }
  }
}

void CheckValues(const Shape& shape) {
  Context context(shape, {Plane::kKeys4, Plane::kValues2, Plane::kValues4});
  Masses masses = Scan(context, 4, true);
  // Every KV head has another set of pages, the last one none.
  std::vector<std::vector<int32_t>> pages(shape.kv_heads);
  for (int head = 0; head + 1 < shape.kv_heads || head == 0; ++head) {
    for (int32_t page = head; page < context.n_full(); page += 1 + head) {
      pages[head].push_back(page);
    }
  }
  const int64_t stride = context.n_full();
  std::vector<float> shares(masses.max.size());
  std::vector<float> pooled(stride);
  std::vector<float> log_totals(context.query_heads());
  std::vector<EstimatedPages> heads;
  for (int head = 0; head < shape.kv_heads; ++head) {
    const int64_t first = static_cast<int64_t>(head) * shape.group;
    PageShares(masses.View(stride).From(first, shape.slots), shape.group,
               shares.data() + first * stride, pooled.data(), log_totals.data() + first);
    heads.push_back({pages[head], shares.data() + first * stride, log_totals.data() + first});
  }
  for (const int bits : {2, 4}) {
    std::vector<float> out(context.q.size());
    std::vector<float> log_mass(context.query_heads());
    const SketchValuesQuery query{.kv = context.View(),
                                  .masses = masses.View(context.n_full()),
                                  .heads = heads,
                                  .out = out.data(),
                                  .log_mass = log_mass.data()};
    SketchValuesWorkspace workspace;
    SketchValues(context.threads, std::span(&query, 1), context.query_heads(), bits, workspace,
                 nullptr);
    for (int head = 0; head < context.query_heads(); ++head) {
      const auto& chosen = pages[head / shape.group];
      std::vector<double> expected(shape.dim, 0.0);
      double total = 0;
      std::vector<float> row(shape.dim);
      double top = -std::numeric_limits<double>::infinity();
      for (int32_t page : chosen) {
        top = std::max<double>(top, masses.max[head * context.n_full() + page]);
      }
      for (int32_t page : chosen) {
        const int64_t at = head * context.n_full() + page;
        const double mass = masses.sum[at] * std::exp(masses.max[at] - top);
        const uint8_t* weights = masses.weights.data() + at * shape.slots;
        const double weight = std::accumulate(weights, weights + shape.slots, 0.0);
        const std::byte* plane =
            context.View().PlaneOf(ValueSketchPlane(bits), page, head / shape.group);
        total += mass;
        for (int t = 0; t < shape.slots; ++t) {
          LoadSketchRow(context.layout(), plane, bits, false, t, row);
          for (int c = 0; c < shape.dim; ++c) expected[c] += mass * weights[t] / weight * row[c];
        }
      }
      if (chosen.empty()) {
        EXPECT_EQ(log_mass[head], -std::numeric_limits<float>::infinity());
        EXPECT_EQ(out[head * shape.dim], 0.0f);
        continue;
      }
      // Sums of up to 1,000 floats of size 1 to 4.
      EXPECT_NEAR(log_mass[head], top + std::log(total), 1e-4);
      for (int c = 0; c < shape.dim; ++c) {
        EXPECT_NEAR(out[head * shape.dim + c], expected[c] / total, 1e-4);
      }
    }
  }
}

class SketchShapes : public ::testing::TestWithParam<Shape> {};

TEST_P(SketchShapes, GridsCoverWhatTheyStandFor) {
  const Shape shape = GetParam();
  Context context(shape,
                  {Plane::kKeys2, Plane::kKeys4, Plane::kKeys8, Plane::kValues2, Plane::kValues4});
  std::vector<float> row(shape.dim);
  std::vector<float> key(shape.dim);
  std::vector<float> value(shape.dim);
  const PagedKv view = context.View();
  for (const auto& [bits, keys] :
       std::vector<std::pair<int, bool>>{{2, true}, {4, true}, {8, true}, {2, false}, {4, false}}) {
    for (int64_t page = 0; page < context.n_full(); ++page) {
      for (int head = 0; head < shape.kv_heads; ++head) {
        const std::byte* plane =
            view.PlaneOf(keys ? KeySketchPlane(bits) : ValueSketchPlane(bits), page, head);
        double largest = 0;
        double rounding = 0;
        for (int slot = 0; slot < shape.slots; ++slot) {
          LoadSketchRow(context.layout(), plane, bits, keys, slot, row);
          LoadKv(view, head, page * shape.slots + slot, key.data(), value.data());
          const std::vector<float>& truth = keys ? key : value;
          double squares = 0;
          double of_row = 0;
          for (int c = 0; c < shape.dim; ++c) {
            of_row += std::pow(row[c] * 0x1p-23, 2);  // rows are sums in f32
            // Channels range over at most 10 deviations, f16 rounds the minimum by 2^-11, and a
            // step is at most range/(2^bits − 1) and a 255th of its group's largest, which the
            // ranges, growing evenly, make a little.
            const double range = 10 * (1 + 0.2 * (keys ? c : 0));
            EXPECT_LE(std::abs(row[c] - truth[c]), range / ((1 << bits) - 1) / 2 + 0.01 * (1 + c));
            squares += std::pow(static_cast<double>(row[c]) - truth[c], 2);
          }
          largest = std::max(largest, std::sqrt(squares));
          rounding = std::max(rounding, of_row);
        }
        const float bound = SketchError(context.layout(), plane, bits);
        EXPECT_GE(bound * (1 + 1e-5) + std::sqrt(rounding), largest);
        EXPECT_LE(bound, largest * (1 + 1e-3) + 1e-5);
      }
    }
  }
}

TEST_P(SketchShapes, ScanGivesTheMassesOfTheSketch) {
  OnEveryByteTarget([&] { CheckScan(GetParam()); });
}

TEST_P(SketchShapes, ValuesAreWeighedByTheirTokens) {
  OnEveryByteTarget([&] { CheckValues(GetParam()); });
}

INSTANTIATE_TEST_SUITE_P(All, SketchShapes,
                         ::testing::Values(Shape{3, 3, 64, 32, 330}, Shape{2, 4, 128, 32, 700},
                                           Shape{1, 7, 40, 16, 130}, Shape{2, 1, 80, 48, 200},
                                           Shape{1, 6, 256, 128, 300}, Shape{1, 8, 512, 48, 200},
                                           Shape{2, 2, 16, 16, 100}, Shape{1, 5, 272, 128, 300},
                                           Shape{1, 8, 48, 32, 130}));

TEST(Sketch, NanInAPageReachesItsMassAndNoOther) {
  const Shape shape{1, 2, 64, 32, 96};
  Context context(shape, {Plane::kKeys2, Plane::kKeys4, Plane::kKeys8});
  std::vector<float> keys = context.keys;
  keys[40 * 64 + 3] = std::nanf("");
  context.Append(keys, context.values);  // pages 3, 4, 5; the NaN is in page 4
  OnEveryByteTarget([&] {
    for (const int bits : {2, 4, 8}) {
      const Masses masses = Scan(context, bits, false);
      for (int head = 0; head < 2; ++head) {
        for (int64_t page = 0; page < 6; ++page) {
          EXPECT_EQ(std::isnan(masses.sum[head * 6 + page]), page == 4);
        }
      }
    }
  });
}

TEST(Sketch, AValueThatItCannotHoldReachesTheMassOfItsPageAndNoOther) {
  const Shape shape{2, 2, 64, 32, 96};
  Context context(shape, {Plane::kKeys2, Plane::kKeys4, Plane::kKeys8, Plane::kValues4});
  std::vector<float> values = context.values;
  values[40 * 2 * 64 + 3] = 65505;  // of head 0, in page 4 once it is appended
  context.Append(context.keys, values);
  OnEveryByteTarget([&] {
    for (const int bits : {2, 4, 8}) {
      const Masses masses = Scan(context, bits, false);
      for (int head = 0; head < 4; ++head) {
        for (int64_t page = 0; page < 6; ++page) {
          EXPECT_EQ(std::isnan(masses.sum[head * 6 + page]), page == 4 && head < 2);
        }
      }
    }
  });
  for (const int bits : {2, 4, 8}) {
    const std::byte* plane = context.View().PlaneOf(KeySketchPlane(bits), 4, 0);
    EXPECT_TRUE(std::isnan(SketchError(context.layout(), plane, bits)));
  }
}

// The factors' unit is bounded from below where all steps are 0; and the largest numbers that f16
// holds, of either sign, leave every score a number.
TEST(Sketch, EqualKeysLargeQueriesAndTheLargestKeysHaveFiniteMasses) {
  for (const int dim : {48, 64, 128}) {
    const Shape shape{1, 3, dim, 32, 32};
    Context context(shape, {Plane::kKeys2, Plane::kKeys4, Plane::kKeys8});
    std::vector<float> keys(32 * dim, 1.0f);
    context.Append(keys, keys);  // page 1
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = i % 3 == 0 ? kLargestF16 : -kLargestF16;
    context.Append(keys, context.values);  // page 2
    for (float& x : context.q) x = 1e12f;
    OnEveryByteTarget([&] {
      for (const int bits : {2, 4, 8}) {
        const Masses masses = Scan(context, bits, false);
        for (size_t i = 0; i < masses.sum.size(); ++i) {
          EXPECT_TRUE(std::isfinite(masses.max[i])) << bits << " bits, " << i;
          EXPECT_TRUE(std::isfinite(masses.sum[i])) << bits << " bits, " << i;
        }
        for (int head = 0; head < 3; ++head) {
          EXPECT_NEAR(masses.max[head * 3 + 1], kScale * 1e12f * dim, 1e7 * dim);
        }
      }
    });
  }
}

TEST(Sketch, EqualKeysHaveNoError) {
  const Shape shape{1, 1, 64, 32, 32};
  Context context(shape, {Plane::kKeys4});
  const std::vector<float> ones(32 * 64, 1.0f);
  context.Append(ones, ones);
  const std::byte* plane = context.View().PlaneOf(Plane::kKeys4, 1, 0);
  EXPECT_EQ(SketchError(context.layout(), plane, 4), 0.0f);
}

}  // namespace
}  // namespace winnow
