#include "policy/prefill/prune_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "policy/arm.h"

namespace winnow {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

PruneModel Model() {
  return {.hash = "aa",
          .n_layers = 8,
          .query_heads = 2,
          .kv_heads = 1,
          .global_layers = {1, 2, 3, 4, 6, 8}};
}

PruneProfile Early() {
  return {.name = "early",
          .model_hash = "aa",
          .n_layers = 8,
          .query_heads = 2,
          .kv_heads = 1,
          .keep = 0.5,
          .max_change = 0.125,
          .min_streak = 0,
          .layers = {
              {.layer = 4, .head_weights = {0, 1}, .eps = {0.75, 0.25}, .eps_audit = {0.5, 0.5}}}};
}

std::string InputError(const json& profile) {
  try {
    PruneProfileFromJson(profile, "p.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    EXPECT_THAT(error.what(), HasSubstr("p.json"));
    return error.what();
  }
  ADD_FAILURE() << profile << " was accepted";
  return "";
}

TEST(PruneProfile, SurvivesJson) {
  const PruneProfile profile = Early();
  const json written = ToJson(profile);
  EXPECT_EQ(written["layers"][0]["eps_audit"], 0.5);  // one number for equal ones
  const PruneProfile read = PruneProfileFromJson(written, "p.json");
  EXPECT_EQ(ToJson(read), ToJson(profile));
  EXPECT_EQ(read.Fingerprint(), profile.Fingerprint());
  EXPECT_THAT(read.layers[0].eps_audit, ElementsAre(0.5, 0.5));
  PruneProfile other = profile;
  other.layers[0].eps[1] = 0.26;
  EXPECT_NE(other.Fingerprint(), profile.Fingerprint());
  json with_more = written;
  with_more["calibration"] = {{"recall", 1}};
  with_more["layers"][0].erase("head_weights");
  EXPECT_THAT(PruneProfileFromJson(with_more, "p.json").layers[0].head_weights, ElementsAre(1, 1));
}

TEST(PruneProfile, WhatIsNoneIsRefused) {
  const json good = ToJson(Early());
  const auto broken = [&](auto change) {
    json profile = good;
    change(profile);
    return InputError(profile);
  };
  EXPECT_THAT(InputError(json::array()), HasSubstr("no object"));
  EXPECT_THAT(broken([](json& p) { p.erase("keep"); }), HasSubstr("'keep' is missing"));
  EXPECT_THAT(broken([](json& p) { p["schema"] = "x"; }), HasSubstr("its schema is \"x\""));
  EXPECT_THAT(broken([](json& p) { p["kep"] = 1; }), HasSubstr("did you mean 'keep'?"));
  EXPECT_THAT(broken([](json& p) { p["keep"] = 2; }), HasSubstr("from 0 to 1"));
  EXPECT_THAT(broken([](json& p) { p["v"] = 0.5; }), HasSubstr("whole number"));
  EXPECT_THAT(broken([](json& p) { p["layers"] = json::array(); }), HasSubstr("no layers"));
  EXPECT_THAT(broken([](json& p) { p["layers"][0]["eps"] = 1; }), HasSubstr("'eps' is 1"));
  EXPECT_THAT(broken([](json& p) { p["layers"][0]["eps"] = {0.1}; }), HasSubstr("for 2 heads"));
  EXPECT_THAT(broken([](json& p) { p["layers"][0]["eps_audit"] = nullptr; }), HasSubstr("null"));
  EXPECT_THAT(broken([](json& p) { p["layers"][0]["head_weights"] = 0; }),
              HasSubstr("no head of layer 4"));
  EXPECT_THAT(broken([](json& p) { p["layers"][0]["layer"] = 8; }), HasSubstr("'layer' is 8"));
  EXPECT_THAT(broken([](json& p) { p["layers"].push_back(p["layers"][0]); }),
              HasSubstr("rising order"));
}

TEST(PruneProfile, FitsOneModelOnly) {
  Early().CheckModel(Model(), "early");
  const auto complaint = [](const PruneModel& model) -> std::string {
    try {
      Early().CheckModel(model, "early");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      return error.what();
    }
    return "";
  };
  PruneModel other = Model();
  other.hash = "bb";
  EXPECT_THAT(complaint(other), testing::AllOf(HasSubstr("hash aa"), HasSubstr("is bb")));
  other = Model();
  other.query_heads = 9;
  EXPECT_THAT(complaint(other), testing::AllOf(HasSubstr("2 query heads"), HasSubstr("9 and 1")));
  other = Model();
  other.global_layers = {1, 2, 3};
  EXPECT_THAT(complaint(other), HasSubstr("a window of attention"));
}

PruneParams ParamsOf(const std::string& arm) { return MakePrefillPolicy(arm)->params; }

TEST(FindPruneProfile, ByNameByFileOrNone) {
  PruneProfile late = Early();
  late.name = "late";
  const std::vector<PruneProfile> built_in = {Early(), late};
  EXPECT_EQ(FindPruneProfile(ParamsOf("prefill=mass"), Model(), built_in).name, "late");
  EXPECT_EQ(FindPruneProfile(ParamsOf("prefill=mass,profile=early"), Model(), built_in).name,
            "early");
  PruneModel other = Model();
  other.hash = "bb";
  for (const std::string arm : {"prefill=mass", "prefill=mass,profile=early"}) {
    try {
      FindPruneProfile(ParamsOf(arm), other, built_in);
      ADD_FAILURE() << arm << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_THAT(error.what(), HasSubstr("uncalibrated=1"));
    }
  }
  const std::string path = testing::TempDir() + "/prune_profile_test.json";
  std::ofstream(path) << ToJson(Early());
  EXPECT_EQ(FindPruneProfile(ParamsOf("prefill=mass,profile=" + path), Model(), {}).keep, 0.5);
  EXPECT_THROW(FindPruneProfile(ParamsOf("prefill=mass,profile=" + path), other, {}), Error);
  std::ofstream(path) << "{";
  EXPECT_THROW(LoadPruneProfile(path), Error);
  std::filesystem::remove(path);
  EXPECT_THROW(LoadPruneProfile(path), Error);
}

TEST(FindPruneProfile, UncalibratedMonitorsGlobalLayersButTheLast) {
  const PruneProfile all =
      FindPruneProfile(ParamsOf("prefill=mass,uncalibrated=1,eps=0.125"), Model(), {});
  std::vector<int> layers;
  for (const PruneProfileLayer& layer : all.layers) layers.push_back(layer.layer);
  EXPECT_THAT(layers, ElementsAre(1, 2, 3, 4, 6));
  EXPECT_THAT(all.layers[0].eps, ElementsAre(0.125, 0.125));
  EXPECT_THAT(all.layers[0].eps_audit, ElementsAre(0.3, 0.3));
  for (const std::string bad : {"5", "8", "9"}) {
    const PruneParams params = ParamsOf("prefill=mass,uncalibrated=1,layers=" + bad);
    EXPECT_THROW(FindPruneProfile(params, Model(), {}), Error) << bad;
  }
}

}  // namespace
}  // namespace winnow
