// Residual estimators as a stage of a sparse layer: merged with what is read under one normaliser,
// where they apply, and what is counted.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "attention/sparse_decode.h"
#include "ops/paged_layer_test.h"
#include "policy/arm.h"
#include "policy/residual/residual_layer_test.h"

namespace winnow {
namespace {

using testing::MappedModel;
using testing::NewMappedModel;
using testing::PagedLayer;

constexpr int64_t kTokens = 650;
constexpr int kKvHeads = 3;
constexpr int kHeads = 9;
constexpr int kDim = 64;
constexpr int kLayer = 5;  // the sixth

struct Attended {
  std::vector<float> out;  // [H, D]
  AttentionAccount account;
};

class SparseResidual : public ::testing::Test {
 protected:
  SparseResidual()
      : layer_({.kv_heads = kKvHeads, .group = kHeads / kKvHeads, .dim = kDim, .n_tokens = kTokens},
               ArmPlanes({"residual=cumulant"}), DType::kF32, 1),
        model_(NewMappedModel({.n_layers = kLayer + 1,
                               .query_heads = kHeads,
                               .kv_heads = kKvHeads,
                               .head_dim = kDim})) {
    layer_.Store(threads_);
  }

  Attended Attend(const std::string& arm) {
    const std::unique_ptr<DecodePolicy> policy = MakeDecodePolicy(arm);
    std::unique_ptr<ResidualMemory> memory;
    if (policy->residual != nullptr) {
      policy->residual->Bind(model_.identity);
      memory = policy->residual->NewMemory();
    }
    if (memory != nullptr && memory->sees_prompt()) SeePrompt(memory.get());
    Attended attended;
    attended.out.resize(static_cast<size_t>(kHeads) * kDim);
    const SparseSlot slot = {
        .query = {.q = layer_.queries(), .kv = layer_.View(), .memory = memory.get()},
        .out = attended.out.data(),
        .account = &attended.account};
    StageSeconds seconds;
    SparseDecode(&threads_).Attend(*policy, kLayer, Params(), std::span(&slot, 1), &seconds);
    return attended;
  }

  void SeePrompt(ResidualMemory* memory) {
    Rng rng(2);
    std::vector<float> rows(static_cast<size_t>(40) * kHeads * kDim);
    for (float& x : rows) x = static_cast<float>(rng.Normal());
    memory->SeePrompt(kLayer, {.q = {rows.data(), {40, kHeads, kDim}},
                               .k = {rows.data(), {40, kKvHeads, kDim}},
                               .v = {rows.data(), {40, kKvHeads, kDim}}});
  }

  DecodeAttentionParams Params() const { return {.query_heads = kHeads, .scale = layer_.scale()}; }

  std::vector<float> Dense() {
    std::vector<float> out(static_cast<size_t>(kHeads) * kDim);
    const DecodeQuery query{
        .q = layer_.queries(), .kv = layer_.View(), .end = kTokens, .out = out.data()};
    DecodeWorkspace workspace;
    DecodeAttention(threads_, std::span(&query, 1), Params(), workspace, nullptr);
    return out;
  }

  std::string Phi(const std::string& name) const { return name + ",file=" + model_.maps_path; }
  std::vector<std::string> Residuals() const {
    return {"centroid", "cumulant", "sample",        "sample,strata=none",
            "resa",     Phi("phi"), Phi("phi_nosub")};
  }

  ThreadPool threads_{2};
  PagedLayer layer_;
  MappedModel model_;
};

TEST_F(SparseResidual, WhereNothingIsUnreadTheBitsAreDenses) {
  const std::vector<float> dense = Dense();
  for (const std::string& residual : Residuals()) {
    const Attended attended = Attend("select=all,residual=" + residual);
    EXPECT_EQ(attended.out, dense) << residual;
    EXPECT_EQ(attended.account.bytes_estimated, 0) << residual;
  }
}

// A sample of all tokens is the unread part itself: 650 terms of a float sum, each within 1e-6.
TEST_F(SparseResidual, TheUnreadPartItselfCompletesToDense) {
  const std::vector<float> dense = Dense();
  for (const std::string strata : {"pages", "none"}) {
    const Attended attended =
        Attend("select=recent,budget=64,residual=sample,n=1000000,strata=" + strata);
    EXPECT_LT(attended.account.tokens_read, kTokens / 2);
    EXPECT_GT(attended.account.bytes_estimated, 0);
    for (size_t i = 0; i < dense.size(); ++i) EXPECT_NEAR(attended.out[i], dense[i], 1e-5);
  }
}

TEST_F(SparseResidual, EveryEstimateChangesWhatIsReadToSomethingFinite) {
  const std::vector<float> dropped = Attend("select=meanstd,budget=64").out;
  for (const std::string& residual : Residuals()) {
    const Attended attended = Attend("select=meanstd,budget=64,residual=" + residual);
    EXPECT_NE(attended.out, dropped) << residual;
    for (float x : attended.out) EXPECT_TRUE(std::isfinite(x)) << residual;
    EXPECT_GT(attended.account.bytes_estimated, 0) << residual;
    EXPECT_GT(attended.account.mass_estimated, 0) << residual;
    EXPECT_EQ(attended.account.residual_dropped, 0) << residual;
  }
}

TEST_F(SparseResidual, GatesSwitchItOffByLayerAndKvHead) {
  const std::string select = "select=meanstd,budget=64";
  const std::vector<float> dropped = Attend(select).out;
  for (const std::string& residual : Residuals()) {
    const std::string arm = fmt::format("{},residual={}", select, residual);
    const std::vector<float> completed = Attend(arm).out;
    EXPECT_EQ(Attend(arm + ",from_layer=6").out, completed) << residual;
    EXPECT_EQ(Attend(arm + ",off=5+7.1").out, completed) << residual;
    EXPECT_EQ(Attend(arm + ",from_layer=7").out, dropped) << residual;
    EXPECT_EQ(Attend(arm + ",off=6").out, dropped) << residual;
    EXPECT_EQ(Attend(arm + ",off=6").account.mass_estimated, 0) << residual;
    std::vector<float> mixed = completed;
    std::copy_n(dropped.begin() + 3 * kDim, 3 * kDim, mixed.begin() + 3 * kDim);
    EXPECT_EQ(Attend(arm + ",off=6.1").out, mixed) << residual;
  }
}

TEST_F(SparseResidual, WhatAGuardDropsIsCountedAndReadAsIfThereWereNone) {
  const MappedModel trained_shorter = NewMappedModel({.n_layers = kLayer + 1,
                                                      .query_heads = kHeads,
                                                      .kv_heads = kKvHeads,
                                                      .head_dim = kDim,
                                                      .trained_tokens = "600"});
  model_ = trained_shorter;
  const Attended attended = Attend("select=meanstd,budget=64,residual=" + Phi("phi"));
  EXPECT_EQ(attended.account.residual_dropped, kHeads);
  EXPECT_EQ(attended.account.mass_estimated, 0);
  EXPECT_EQ(attended.out, Attend("select=meanstd,budget=64").out);
}

}  // namespace
}  // namespace winnow
