// What estimators keep of a sequence is what they would compute anew, after any history of its
// pages: appended, rolled back, shared, copied, freed and used again.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/rng.h"
#include "kv/sequence_kv.h"
#include "policy/residual/feature_memory.h"
#include "policy/residual/residual_layer_test.h"

namespace winnow {
namespace {

using testing::EstimateLayer;
using testing::LayerEstimate;
using testing::MappedModel;
using testing::NewMappedModel;
using testing::NewResidual;

constexpr int kKvHeads = 2;
constexpr int kHeads = 4;
constexpr int kDim = 16;
constexpr int kSlots = 8;

class ResidualHistory : public ::testing::Test {
 protected:
  std::vector<float> Normals(int64_t n) {
    std::vector<float> values(n);
    for (float& x : values) x = static_cast<float>(rng_.Normal());
    return values;
  }

  void Append(SequenceKv* kv, int64_t n) {
    const int64_t first = kv->n_tokens(0);
    std::vector<int32_t> positions(n);
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(first));
    if (!kv->Append(0, positions)) return;
    const std::vector<float> k = Normals(n * kKvHeads * kDim);
    const std::vector<float> v = Normals(n * kKvHeads * kDim);
    StoreKv(kv, 0, first, {k.data(), {n, kKvHeads, kDim}}, {v.data(), {n, kKvHeads, kDim}});
  }

  // The pages after the first and before the last tokens, half of them unread.
  LayerEstimate Estimate(ResidualEstimator* residual, const SequenceKv& kv, ResidualMemory* memory,
                         uint64_t seed) {
    const int64_t end = (kv.n_tokens(0) - 1) / kSlots;
    Rng rng(seed);
    std::vector<int32_t> unread, read;
    for (int32_t page = 1; page < end; ++page) (rng.Below(2) == 0 ? unread : read).push_back(page);
    return EstimateLayer(threads_, residual, {.q = q_.data(), .kv = kv.View(0), .memory = memory},
                         {.query_heads = kHeads, .scale = 0.25f}, unread, read, 0);
  }

  Rng rng_{1};
  ThreadPool threads_{2};
  PagePool pool_{PageLayout(kKvHeads, kSlots, kDim, DType::kF32), 40};
  std::vector<float> q_ = Normals(kHeads * kDim);
};

TEST_F(ResidualHistory, WhatIsKeptIsWhatWouldBeComputed) {
  const MappedModel model = NewMappedModel({.n_layers = 1, .hidden = 8, .n_features = 4});
  const auto phi = NewResidual("phi", {{"file", model.maps_path}});
  const auto nosub = NewResidual("phi_nosub", {{"file", model.maps_path}});
  phi->Bind(model.identity);
  nosub->Bind(model.identity);
  const auto resa = NewResidual("resa");
  const std::vector<float> prompt = Normals(20 * kHeads * kDim);
  const Qkv qkv = {.q = {prompt.data(), {20, kHeads, kDim}},
                   .k = {prompt.data(), {20, kKvHeads, kDim}},
                   .v = {prompt.data(), {20, kKvHeads, kDim}}};
  ResidualEstimator* const estimators[] = {phi.get(), nosub.get(), resa.get()};
  const auto new_memory = [&](ResidualEstimator* estimator) {
    auto memory = estimator->NewMemory();
    if (memory->sees_prompt()) memory->SeePrompt(0, qkv);
    return memory;
  };
  struct Sequence {
    SequenceKv kv;
    std::vector<std::unique_ptr<ResidualMemory>> memories;  // one an estimator, never made anew
  };
  std::vector<Sequence> sequences;
  for (int i = 0; i < 3; ++i) {
    sequences.push_back({SequenceKv(&pool_, 1), {}});
    for (ResidualEstimator* estimator : estimators) {
      sequences.back().memories.push_back(new_memory(estimator));
    }
  }
  int64_t compared = 0;
  for (int step = 0; step < 600; ++step) {
    Sequence& s = sequences[rng_.Below(3)];
    Sequence& other = sequences[rng_.Below(3)];
    const int64_t n = s.kv.n_tokens(0);
    switch (rng_.Below(6)) {
      case 0:
        Append(&s.kv, 1 + static_cast<int64_t>(rng_.Below(40)));
        break;
      case 1:
      case 2:
        Append(&s.kv, 1);
        break;
      case 3:  // back, and on with other tokens: the last page may be the same one
        s.kv.Truncate(0, std::max<int64_t>(0, n - static_cast<int64_t>(rng_.Below(20))));
        Append(&s.kv, static_cast<int64_t>(rng_.Below(20)));
        break;
      case 4:
        if (&s != &other) s.kv = other.kv.Fork();
        break;
      default: {
        if (&s == &other || rng_.Below(2) == 0) break;
        const int64_t n_full = other.kv.n_tokens(0) / kSlots;
        s.kv.Clear();
        s.kv.AdoptPages(0, other.kv.pages(0).first(rng_.Below(n_full + 1)));
      }
    }
    for (size_t i = 0; i < std::size(estimators); ++i) {
      const auto fresh = new_memory(estimators[i]);
      const LayerEstimate kept = Estimate(estimators[i], s.kv, s.memories[i].get(), step);
      const LayerEstimate anew = Estimate(estimators[i], s.kv, fresh.get(), step);
      ASSERT_EQ(kept.out, anew.out) << "step " << step << ", estimator " << i;
      ASSERT_EQ(kept.log_mass, anew.log_mass) << "step " << step << ", estimator " << i;
      ASSERT_EQ(kept.dropped, anew.dropped);
      compared += anew.account.bytes_read > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(compared, 900);
}

TEST_F(ResidualHistory, OnlyNewPagesAreComputed) {
  const MappedModel model = NewMappedModel({.n_layers = 1, .hidden = 8, .n_features = 4});
  SequenceKv kv(&pool_, 1);
  Append(&kv, 10 * kSlots);
  FeatureMemory memory;
  const auto sync = [&](const SequenceKv& of, int64_t end) {
    return memory.Sync(threads_, model.maps, 0, of.View(0), 1, end);
  };
  EXPECT_EQ(sync(kv, 8), 7);
  EXPECT_EQ(sync(kv, 8), 0);
  EXPECT_EQ(sync(kv, 10), 2);
  EXPECT_EQ(sync(kv.Fork(), 10), 0);  // the same pages
  EXPECT_EQ(sync(kv, 6), 0);
  EXPECT_EQ(sync(kv, 10), 4);
  kv.Truncate(0, 9 * kSlots + 3);
  Append(&kv, kSlots);
  EXPECT_EQ(sync(kv, 10), 1);  // page 9 has other tokens now
}

}  // namespace
}  // namespace winnow
