// Estimators on the pages of a layer against the pure functions on the same rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "ops/paged_layer_test.h"
#include "policy/certify/mgf_bounds.h"
#include "policy/certify/stored_summary.h"
#include "policy/residual/estimators.h"
#include "policy/residual/residual_layer_test.h"

namespace winnow {
namespace {

using testing::EstimateLayer;
using testing::LayerEstimate;
using testing::LayerShape;
using testing::MappedModel;
using testing::NewMappedModel;
using testing::NewResidual;
using testing::PagedLayer;
using testing::RowsOf;
using testing::StateOfTokens;
using testing::TokensOf;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int kSlots = 32;
const std::vector<int32_t> kUnread = {1, 2, 4, 5, 7, 8};
const std::vector<int32_t> kRead = {3, 6};

// Mean and deviation of a page's rows [D], in double.
struct Moments {
  std::vector<double> mean, deviation;

  // As the planes of keys hold them.
  Moments Stored() const {
    Moments stored = *this;
    for (auto* row : {&stored.mean, &stored.deviation}) {
      for (double& x : *row) x = RoundNearest(x, FloatFormat::kF16);
    }
    return stored;
  }
};
Moments MomentsOf(TensorView<const double, 2> all, int64_t page) {
  const auto rows = all.Slice(page * kSlots, (page + 1) * kSlots);
  Moments moments;
  for (int64_t c = 0; c < rows.shape[1]; ++c) {
    double mean = 0;
    for (int64_t t = 0; t < kSlots; ++t) mean += rows.row(t)[c] / kSlots;
    double squares = 0;
    for (int64_t t = 0; t < kSlots; ++t)
      squares += (rows.row(t)[c] - mean) * (rows.row(t)[c] - mean);
    moments.mean.push_back(mean);
    moments.deviation.push_back(std::sqrt(squares / kSlots));
  }
  return moments;
}

class ResidualPages : public ::testing::TestWithParam<LayerShape> {
 protected:
  static constexpr int64_t kTokens = 330;  // ten pages and ten tokens

  std::unique_ptr<PagedLayer> NewLayer(uint64_t seed, DType dtype = DType::kF16) const {
    LayerShape shape = GetParam();
    shape.n_tokens = kTokens;
    return std::make_unique<PagedLayer>(
        shape, PlaneSet{Plane::kKeyMean, Plane::kKeyDeviation, Plane::kKeyBox, Plane::kValueMean},
        dtype, seed);
  }
  std::unique_ptr<PagedLayer> RandomLayer(uint64_t seed, DType dtype = DType::kF16) {
    auto layer = NewLayer(seed, dtype);
    layer->Store(threads_);
    return layer;
  }

  MappedModel NewModel(const std::string& trained_tokens = "4096",
                       const std::vector<int>& omit = {}) const {
    const LayerShape& shape = GetParam();
    return NewMappedModel({.query_heads = shape.kv_heads * shape.group,
                           .kv_heads = shape.kv_heads,
                           .head_dim = shape.dim,
                           .trained_tokens = trained_tokens,
                           .omit_layers = omit});
  }
  static std::unique_ptr<ResidualEstimator> NewPhi(const MappedModel& model,
                                                   const std::string& name = "phi") {
    auto residual = NewResidual(name, {{"file", model.maps_path}});
    residual->Bind(model.identity);
    return residual;
  }

  // The layer's own keys, and queries drawn anew, as its prompt.
  static std::vector<float> PromptQueries(const PagedLayer& layer, uint64_t seed) {
    Rng rng(seed);
    std::vector<float> q(kTokens * layer.query_heads() * layer.shape().dim);
    for (float& x : q) x = static_cast<float>(rng.Normal() + 0.3);
    return q;
  }
  static std::unique_ptr<ResidualMemory> ResaMemoryOf(const ResidualEstimator& resa,
                                                      PagedLayer& layer,
                                                      const std::vector<float>& queries) {
    const LayerShape& shape = layer.shape();
    std::vector<float> keys;
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int head = 0; head < shape.kv_heads; ++head) {
        const auto key = layer.key(t, head);
        keys.insert(keys.end(), key.begin(), key.end());
      }
    }
    auto memory = resa.NewMemory();
    // In two chunks.
    const TensorView<const float, 3> q(queries.data(), {kTokens, layer.query_heads(), shape.dim});
    const TensorView<const float, 3> k(keys.data(), {kTokens, shape.kv_heads, shape.dim});
    memory->SeePrompt(1, {.q = q.Slice(0, 100), .k = k.Slice(0, 100), .v = k.Slice(0, 100)});
    memory->SeePrompt(1, {.q = q.Slice(100, kTokens), .k = k.Slice(100, kTokens), .v = k});
    return memory;
  }

  LayerEstimate Estimate(ResidualEstimator* residual, const PagedLayer& layer,
                         ResidualMemory* memory = nullptr,
                         const std::vector<int32_t>& unread = kUnread,
                         const std::vector<int32_t>& read = kRead, int layer_index = 1) {
    return EstimateLayer(
        threads_, residual, {.q = layer.queries(), .kv = layer.View(), .memory = memory},
        {.query_heads = layer.query_heads(), .scale = layer.scale()}, unread, read, layer_index);
  }

  // Everything below is exact up to floats that were stored or returned: planes, page states and
  // features carry 6e-8 of values of a few units, in sums of up to 128 terms weighted by softmax,
  // and a score of up to 30 carries 30·6e-8 into its weight.
  static void ExpectNear(const LayerEstimate& estimate, int head, const PartialAttention& wanted) {
    constexpr double kTolerance = 2e-5;
    EXPECT_NEAR(estimate.log_mass[head], wanted.log_mass,
                kTolerance * (1 + std::abs(wanted.log_mass)))
        << "head " << head;
    const std::vector<float> out = estimate.Out(head, std::ssize(wanted.out));
    for (size_t c = 0; c < wanted.out.size(); ++c) {
      EXPECT_NEAR(out[c], wanted.out[c], kTolerance * 4) << "head " << head << " channel " << c;
    }
  }

  static std::vector<double> Query(const PagedLayer& layer, int head) {
    std::vector<double> q(layer.q(head).begin(), layer.q(head).end());
    for (double& x : q) x *= static_cast<double>(layer.scale());
    return q;
  }

  ThreadPool threads_{2};
};

TEST_P(ResidualPages, CumulantIsThePureFunctionClippedToTheSoundInterval) {
  auto layer = NewLayer(1);
  const LayerShape& shape = layer->shape();
  // One page whose keys are two clusters far apart: the variance term overshoots the box.
  for (int64_t t = 4 * kSlots; t < 5 * kSlots; ++t) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      for (float& x : layer->key(t, head)) x = t % 2 == 0 ? 30.0f : -30.0f;
    }
  }
  layer->Store(threads_);
  const auto cumulant = NewResidual("cumulant");
  const LayerEstimate estimate = Estimate(cumulant.get(), *layer);
  int64_t clipped = 0;
  for (int head = 0; head < layer->query_heads(); ++head) {
    const TokenRows rows = RowsOf(layer->View(), head / shape.group);
    const std::vector<double> q = Query(*layer, head);
    std::vector<double> mean, variance, value;
    std::vector<LogMassInterval> intervals;
    PageSummary summary;
    for (int32_t page : kUnread) {
      const Moments keys = MomentsOf(rows.Keys(), page).Stored();
      LoadStoredSummary(layer->View(), page, head / shape.group, &summary);
      const LogInterval interval = BoundLogMass(ShapeOfLogits(q, summary.View()));
      intervals.push_back({interval.lo, interval.hi});
      mean.insert(mean.end(), keys.mean.begin(), keys.mean.end());
      for (double x : keys.deviation) variance.push_back(x * x);
      const Moments values = MomentsOf(rows.Values(), page);
      value.insert(value.end(), values.mean.begin(), values.mean.end());
    }
    const std::vector<int64_t> counts(kUnread.size(), kSlots);
    std::vector<int64_t> pages(kUnread.size());
    std::iota(pages.begin(), pages.end(), 0);
    const int64_t n = std::ssize(pages);
    const ResidualEstimate wanted =
        CumulantEstimate({.key_mean = {mean.data(), {n, shape.dim}},
                          .key_variance = {variance.data(), {n, shape.dim}},
                          .value_mean = {value.data(), {n, shape.dim}},
                          .counts = counts},
                         q, pages, intervals);
    ExpectNear(estimate, head, wanted.state);
    clipped += wanted.clipped;
  }
  EXPECT_GT(clipped, 0);
  // Four rows of f16 and a mean value.
  EXPECT_EQ(estimate.account.bytes_read,
            std::ssize(kUnread) * shape.kv_heads * shape.dim * (4 * 2 + 4));
}

TEST_P(ResidualPages, ASampleOfEverythingIsExact) {
  const auto layer = RandomLayer(2);
  for (const std::string strata : {"pages", "none"}) {
    const auto sample = NewResidual("sample", {{"n", "1000000"}, {"strata", strata}});
    const LayerEstimate estimate = Estimate(sample.get(), *layer);
    for (int head = 0; head < layer->query_heads(); ++head) {
      const TokenRows rows = RowsOf(layer->View(), head / layer->shape().group);
      ExpectNear(
          estimate, head,
          AttendRows(Query(*layer, head), rows.Keys(), rows.Values(), TokensOf(kUnread, kSlots)));
    }
  }
}

TEST_P(ResidualPages, ASampleDependsOnItsSeedLayerAndStepOnly) {
  const auto layer = RandomLayer(3);
  for (const std::string strata : {"pages", "none"}) {
    const auto sample = [&](const std::string& seed) {
      return NewResidual("sample", {{"n", "12"}, {"strata", strata}, {"seed", seed}});
    };
    const LayerEstimate first = Estimate(sample("5").get(), *layer);
    const auto again = sample("5");
    Estimate(again.get(), *layer, nullptr, {1}, {}, 0);
    EXPECT_EQ(Estimate(again.get(), *layer).out, first.out);
    EXPECT_NE(Estimate(sample("6").get(), *layer).out, first.out);
    EXPECT_NE(Estimate(sample("5").get(), *layer, nullptr, kUnread, kRead, 2).out, first.out);
    // Twelve tokens of six pages, for a KV head.
    const PageLayout& layout = layer->layout();
    EXPECT_EQ(
        first.account.bytes_read,
        layout.TokenBytes(12) + std::ssize(kUnread) * layout.kv_heads * 4 * layout.padded_dim * 2);
  }
}

// Ẑ/Z over 100 seeds has mean 1: its deviation is that of the mean of 24 draws of e^{q·k}/E, at
// most √((e^1 − 1)/24) = 0.27 for scores of N(0, 1), so the mean is within 4·0.27/√100 = 0.108.
TEST_P(ResidualPages, TheMassOfASampleIsRightOnAverage) {
  const auto layer = RandomLayer(4);
  const TokenRows rows = RowsOf(layer->View(), 0);
  const double truth =
      AttendRows(Query(*layer, 0), rows.Keys(), rows.Values(), TokensOf(kUnread, kSlots)).log_mass;
  double sum = 0;
  for (int seed = 0; seed < 100; ++seed) {
    const auto sample = NewResidual("sample", {{"n", "24"}, {"seed", fmt::format("{}", seed)}});
    sum += std::exp(Estimate(sample.get(), *layer).log_mass[0] - truth);
  }
  EXPECT_NEAR(sum / 100, 1, 0.108);
}

TEST_P(ResidualPages, ResaIsThePureFunctionWithTheMeansOfThePrompt) {
  auto layer = RandomLayer(5);
  const LayerShape& shape = layer->shape();
  const std::vector<float> queries = PromptQueries(*layer, 50);
  const auto resa = NewResidual("resa");
  const auto memory = ResaMemoryOf(*resa, *layer, queries);
  EXPECT_TRUE(memory->sees_prompt());
  const LayerEstimate first = Estimate(resa.get(), *layer, memory.get());
  for (int head = 0; head < layer->query_heads(); ++head) {
    const int kv_head = head / shape.group;
    std::vector<double> scaled, keys;
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int c = 0; c < shape.dim; ++c) {
        scaled.push_back(static_cast<double>(layer->scale()) *
                         queries[(t * layer->query_heads() + head) * shape.dim + c]);
        keys.push_back(layer->key(t, kv_head)[c]);
      }
    }
    const ResaMeans means =
        MakeResaMeans({scaled.data(), {kTokens, shape.dim}}, {keys.data(), {kTokens, shape.dim}});
    const TokenRows rows = RowsOf(layer->View(), kv_head);
    ExpectNear(first, head,
               ResaEstimate(
                   means, Query(*layer, head),
                   AttendRows(means.query, rows.Keys(), rows.Values(), TokensOf(kUnread, kSlots))));
  }
  // The pages' states are kept: the second time no page is read.
  const LayerEstimate second = Estimate(resa.get(), *layer, memory.get());
  EXPECT_EQ(second.out, first.out);
  EXPECT_EQ(first.account.bytes_read - second.account.bytes_read,
            layer->layout().TokenBytes(std::ssize(kUnread) * kSlots));
  EXPECT_GT(memory->bytes(), 0);
}

TEST_P(ResidualPages, PhiIsThePureFunction) {
  const auto layer = RandomLayer(6);
  const LayerShape& shape = layer->shape();
  const MappedModel model = NewModel();
  const auto phi = NewPhi(model);
  const auto nosub = NewPhi(model, "phi_nosub");
  const auto memory = phi->NewMemory();
  const LayerEstimate estimate = Estimate(phi.get(), *layer, memory.get());
  const LayerEstimate whole = Estimate(nosub.get(), *layer);
  std::vector<int32_t> middle = kUnread;
  middle.insert(middle.end(), kRead.begin(), kRead.end());
  std::sort(middle.begin(), middle.end());
  FeatureMapScratch scratch;
  std::vector<double> log_phi(model.maps.shape().n_features);
  for (int head = 0; head < layer->query_heads(); ++head) {
    const int kv_head = head / shape.group;
    const FeatureState all =
        StateOfTokens(model.maps, 1, layer->View(), kv_head, TokensOf(middle, kSlots));
    FeatureState rest = all;
    rest.Subtract(StateOfTokens(model.maps, 1, layer->View(), kv_head, TokensOf(kRead, kSlots)),
                  kFloat64Guards.feature);
    const std::vector<double> q(layer->q(head).begin(), layer->q(head).end());
    LogFeatures(model.maps.Query(1, head), q, scratch, log_phi);
    ExpectNear(estimate, head, EstimateResidual(all, rest, log_phi, 0, kFloat64Guards.mass).state);
    ExpectNear(whole, head, all.Estimate(log_phi, 0));
  }
  EXPECT_EQ(estimate.dropped, 0);
  // Without a memory, or with one that was just made, the numbers are the same.
  EXPECT_EQ(Estimate(phi.get(), *layer).out, estimate.out);
  EXPECT_GT(memory->bytes(), 0);
}

TEST_P(ResidualPages, WhateverIsReadPhiHasNoNegativeMassNorMoreThanAllOfIt) {
  const auto layer = RandomLayer(7);
  const MappedModel model = NewModel();
  const auto phi = NewPhi(model);
  const auto nosub = NewPhi(model, "phi_nosub");
  const auto memory = phi->NewMemory();
  Rng rng(70);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<int32_t> unread, read;
    for (int32_t page = 1; page < 9; ++page) (rng.Below(2) == 0 ? unread : read).push_back(page);
    if (unread.empty()) continue;
    const LayerEstimate part = Estimate(phi.get(), *layer, memory.get(), unread, read);
    const LayerEstimate all = Estimate(nosub.get(), *layer, nullptr, unread, read);
    for (int head = 0; head < layer->query_heads(); ++head) {
      EXPECT_LE(part.log_mass[head], all.log_mass[head] + 1e-5);
      EXPECT_FALSE(std::isnan(part.log_mass[head]));
    }
  }
}

// Keys of zero beside keys a thousand times as large: their features are a part of the sums that
// double cannot hold.
TEST_P(ResidualPages, PhiIsDroppedAndCountedWhereTheGuardFires) {
  auto layer = NewLayer(8, DType::kF32);
  for (int64_t t = kSlots; t < 9 * kSlots; ++t) {
    for (int head = 0; head < layer->shape().kv_heads; ++head) {
      for (float& x : layer->key(t, head)) x *= t < 2 * kSlots ? 0.0f : 1000.0f;
    }
  }
  layer->Store(threads_);
  const auto phi = NewPhi(NewModel());
  const LayerEstimate estimate = Estimate(phi.get(), *layer, nullptr, {1}, {2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(estimate.dropped, layer->query_heads());
  for (float mass : estimate.log_mass) EXPECT_EQ(mass, -std::numeric_limits<float>::infinity());
  for (float x : estimate.out) EXPECT_EQ(x, 0);
}

TEST_P(ResidualPages, PhiAbstainsWithoutMapsAndBeyondTheTrainedLength) {
  const auto layer = RandomLayer(9);
  const LayerEstimate no_maps = Estimate(NewPhi(NewModel("4096", {1})).get(), *layer);
  EXPECT_EQ(no_maps.dropped, 0);
  EXPECT_EQ(no_maps.account.bytes_read, 0);
  const LayerEstimate too_long = Estimate(NewPhi(NewModel("329")).get(), *layer);
  EXPECT_EQ(too_long.dropped, layer->query_heads());
  for (const LayerEstimate& estimate : {no_maps, too_long}) {
    for (float mass : estimate.log_mass) EXPECT_EQ(mass, -std::numeric_limits<float>::infinity());
  }
  EXPECT_EQ(Estimate(NewPhi(NewModel("330")).get(), *layer).dropped, 0);
}

TEST_P(ResidualPages, PhiRefusesAnotherModelsMaps) {
  const MappedModel model = NewModel();
  const MappedModel other = NewModel();
  const auto phi = NewResidual("phi", {{"file", model.maps_path}});
  EXPECT_THROW(phi->Bind(other.identity), Error);  // another hash
  ModelIdentity wider = model.identity;
  wider.config.head_dim *= 2;
  EXPECT_THROW(phi->Bind(wider), Error);
  ModelIdentity shallower = model.identity;
  shallower.config.n_layers = 1;
  EXPECT_THROW(phi->Bind(shallower), Error);
  EXPECT_THROW(phi->Bind({model.identity.config, ""}), Error);
  EXPECT_NO_THROW(phi->Bind(model.identity));
}

// A NaN in a value reaches its channel, one in a key its KV head, and neither anything else.
TEST_P(ResidualPages, NaNReachesItsHeadAndNoOther) {
  for (const bool in_key : {false, true}) {
    auto layer = NewLayer(10, DType::kF32);
    (in_key ? layer->key(70, 1) : layer->value(70, 1))[3] = kNan;
    layer->Store(threads_);
    const MappedModel model = NewModel();
    const auto resa = NewResidual("resa");
    auto clean = RandomLayer(10, DType::kF32);
    const auto memory = ResaMemoryOf(*resa, *clean, PromptQueries(*clean, 51));
    const std::unique_ptr<ResidualEstimator> others[] = {
        NewResidual("centroid"), NewResidual("cumulant"), NewResidual("sample", {{"n", "1000000"}}),
        NewPhi(model), NewPhi(model, "phi_nosub")};
    std::vector<LayerEstimate> estimates = {Estimate(resa.get(), *layer, memory.get())};
    for (const auto& other : others) estimates.push_back(Estimate(other.get(), *layer));
    const LayerShape& shape = layer->shape();
    for (size_t i = 0; i < estimates.size(); ++i) {
      for (int head = 0; head < layer->query_heads(); ++head) {
        const bool poisoned = head / shape.group == 1;
        EXPECT_EQ(std::isnan(estimates[i].log_mass[head]), poisoned && in_key) << i;
        const std::vector<float> out = estimates[i].Out(head, shape.dim);
        for (int c = 0; c < shape.dim; ++c) {
          EXPECT_EQ(std::isnan(out[c]), poisoned && (in_key || c == 3)) << i << ' ' << c;
        }
      }
    }
  }
}

TEST_P(ResidualPages, WithoutUnreadPagesThereIsNothing) {
  const auto layer = RandomLayer(11);
  const MappedModel model = NewModel();
  const std::unique_ptr<ResidualEstimator> all[] = {
      NewResidual("centroid"), NewResidual("cumulant"), NewResidual("sample"),
      NewResidual("resa"),     NewPhi(model),           NewPhi(model, "phi_nosub")};
  for (const auto& residual : all) {
    const LayerEstimate estimate = Estimate(residual.get(), *layer, nullptr, {}, kRead);
    EXPECT_EQ(estimate.account.bytes_read, 0);
    EXPECT_EQ(estimate.dropped, 0);
    for (float mass : estimate.log_mass) EXPECT_EQ(mass, -std::numeric_limits<float>::infinity());
    for (float x : estimate.out) EXPECT_EQ(x, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ResidualPages,
                         ::testing::Values(LayerShape{.kv_heads = 3, .group = 3, .dim = 64},
                                           LayerShape{.kv_heads = 8, .group = 4, .dim = 128}),
                         [](const auto& shape) {
                           return fmt::format("{}Of{}", shape.param.kv_heads, shape.param.dim);
                         });

}  // namespace
}  // namespace winnow
