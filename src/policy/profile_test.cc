#include "policy/profile.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "model/model_hash.h"
#include "policy/arm.h"
#include "policy/auto_arm.h"
#include "policy/builtin_profiles.h"
#include "testing/expect_error.h"
#include "testing/paths.h"

namespace winnow {
namespace {

using ::nlohmann::json;
using ::winnow::testing::ExpectInputError;

ModelProfile Example() {
  ModelProfile profile;
  profile.model = {.name = "example",
                   .hash = Hash128{1, 2}.Hex(),
                   .layers = 4,
                   .query_heads = 6,
                   .kv_heads = 3,
                   .head_dim = 64};
  profile.arm = ParseArm("select=sketch,budget=64,residual=sketch").resolved;
  profile.completion_off = {{1, 0}, {1, 2}, {3, 1}};
  profile.target = {.kl = 0.01, .top1_agreement = 0.95};
  profile.calibration = {.prompts = 6,
                         .positions = 120,
                         .kl = 0.004,
                         .top1_agreement = 0.975,
                         .perplexity_ratio = 1.002,
                         .bytes_ratio = 0.3};
  profile.test = profile.calibration;
  profile.test.kl = 0.006;
  profile.version = "1.2.3";
  profile.command = "winnow calibrate -m example.gguf";
  return profile;
}

// `edit` changes the JSON of a good profile; what is made of it must be refused with `message`.
template <typename Edit>
void ExpectRefused(Edit edit, const std::string& message) {
  json value = json::parse(FormatProfile(Example()));
  edit(value);
  ExpectInputError([&] { ParseProfile(value.dump(), "p.json"); }, "p.json: " + message);
}

TEST(Profile, ReadsWhatItWrote) {
  const ModelProfile profile = Example();
  EXPECT_EQ(ParseProfile(FormatProfile(profile), "p.json"), profile);
  const ProfileModel model = profile.model;
  CheckProfile(profile, model, "p.json");
}

TEST(Profile, TheFullArmHoldsTheGates) {
  const ModelProfile profile = Example();
  const std::unique_ptr<DecodePolicy> policy = MakeDecodePolicy(profile.FullArm());
  ASSERT_NE(policy, nullptr);
  for (int layer = 0; layer < 4; ++layer) {
    for (int head = 0; head < 3; ++head) {
      const bool off = (layer == 1 && head != 1) || (layer == 3 && head == 1);
      EXPECT_EQ(policy->gates.Completes(layer, head), !off) << layer << " " << head;
    }
  }
  EXPECT_NE(ParseArm(profile.FullArm()).fingerprint, ParseArm(profile.arm).fingerprint);
  EXPECT_EQ(ParseArm(ParseArm(profile.FullArm()).resolved).resolved,
            ParseArm(profile.FullArm()).resolved);
}

TEST(Profile, AWholeLayerOffNamesItsHeads) {
  ModelProfile profile = Example();
  profile.completion_off = {{2, -1}};
  const ModelProfile read = ParseProfile(FormatProfile(profile), "p.json");
  const std::vector<CompletionGate> heads = {{2, 0}, {2, 1}, {2, 2}};
  EXPECT_EQ(read.completion_off, heads);
}

TEST(Profile, DamageIsNamed) {
  ExpectInputError([] { ParseProfile("{\"schema\": ", "p.json"); }, "p.json: not a profile");
  ExpectInputError([] { ParseProfile("[1]", "p.json"); }, "p.json: the profile must be an object");
  ExpectRefused([](json& p) { p["schema"] = "winnow.profile/9"; },
                "the schema is 'winnow.profile/9'; this version reads winnow.profile/1");
  ExpectRefused([](json& p) { p.erase("schema"); }, "'schema' is missing");
  ExpectRefused([](json& p) { p["decode"].erase("arm"); }, "'decode.arm' is missing");
  ExpectRefused([](json& p) { p["decode"]["budgte"] = 1; }, "unknown key 'decode.budgte'");
  ExpectRefused([](json& p) { p["extra"] = 1; }, "unknown key 'extra'");
  ExpectRefused([](json& p) { p["model"]["layers"] = "many"; },
                "'model.layers' must be a whole number");
  ExpectRefused([](json& p) { p["model"]["layers"] = 0; }, "'model.layers' must be");
  ExpectRefused([](json& p) { p["decode"]["test"] = 3; }, "decode.test must be an object");
}

TEST(Profile, ContradictionsAreNamed) {
  ExpectRefused([](json& p) { p["decode"]["target"]["kl"] = 0; }, "'decode.target.kl' must be");
  ExpectRefused([](json& p) { p["decode"]["target"]["top1_agreement"] = 1.5; },
                "'decode.target.top1_agreement' must be");
  ExpectRefused([](json& p) { p["decode"]["arm"] = "select=sketch,budget=4,mass=0.9"; },
                "'decode.arm': select=sketch: budget, mass and fraction contradict each other");
  ExpectRefused([](json& p) { p["decode"]["arm"] = "select=skech"; },
                "'decode.arm': unknown selector 'skech' (did you mean 'sketch'?)");
  ExpectRefused([](json& p) { p["decode"]["arm"] = "auto"; }, "'decode.arm' is auto");
  ExpectRefused([](json& p) { p["decode"]["completion_off"][0]["layer"] = 5; },
                "'decode.completion_off[0].layer' must be");
  ExpectRefused([](json& p) { p["decode"]["completion_off"][0]["kv_heads"] = {3}; },
                "'decode.completion_off[0].kv_heads' holds heads from 0 to 2");
  ExpectRefused([](json& p) { p["decode"]["arm"] = "dense"; }, "'decode.arm': ");
}

TEST(Profile, AnotherModelIsRefused) {
  const ModelProfile profile = Example();
  ProfileModel other = profile.model;
  other.hash = Hash128{3, 4}.Hex();
  ExpectInputError([&] { CheckProfile(profile, other, "p.json"); },
                   "p.json: the profile is of another model");
  other = profile.model;
  other.kv_heads = 1;
  ExpectInputError([&] { CheckProfile(profile, other, "p.json"); },
                   "p.json: the profile says kv_heads 3, the model has 1");
}

TEST(Profile, MissedTargetsAreWrittenDownAndCannotBeEdited) {
  ModelProfile profile = Example();
  EXPECT_TRUE(profile.Missed().empty());
  profile.calibration.kl = 0.02;
  profile.test.top1_agreement = 0.5;
  EXPECT_EQ(profile.Missed(), (std::vector<std::string>{"kl", "top1_agreement"}));
  EXPECT_EQ(ParseProfile(FormatProfile(profile), "p.json"), profile);
  ExpectRefused([](json& p) { p["decode"]["missed"] = {"kl"}; },
                "'decode.missed' contradicts the figures, by which it is []");
  ExpectRefused([](json& p) { p["decode"]["test"]["kl"] = 9; },
                "'decode.missed' contradicts the figures, by which it is [\"kl\"]");
}

TEST(Profile, AMissedTargetKeepsAutoDense) {
  ModelProfile profile = Example();
  EXPECT_EQ(profile.Refusal(), "");
  profile.test.kl = 0.02;
  EXPECT_THAT(profile.Refusal(), ::testing::HasSubstr("on its test prompts the mean KL was 0.02"));
  // Of 120 positions, 0.95 - 1.645·sqrt(0.95·0.05/120) = 0.917.
  profile.test.kl = 0.002;
  profile.test.top1_agreement = 0.918;
  EXPECT_EQ(profile.Refusal(), "");
  profile.test.top1_agreement = 0.916;
  EXPECT_THAT(profile.Refusal(), ::testing::HasSubstr("the top-1 agreement 0.916"));
  profile = Example();
  profile.calibration.kl = 0.02;
  EXPECT_THAT(profile.Refusal(), ::testing::HasSubstr("on its calibration prompts"));
  profile.test = {};
  EXPECT_THAT(profile.Refusal(), ::testing::HasSubstr("not tested"));
  profile.completion_off.clear();
  profile.arm = "dense";
  EXPECT_THAT(profile.Refusal(), ::testing::HasSubstr("no arm was found"));
}

TEST(Profile, TheDefaultModelHasABuiltInOne) {
  EXPECT_FALSE(BuiltinProfileTexts().empty());
  for (const std::string_view text : BuiltinProfileTexts()) {
    const ModelProfile profile = ParseProfile(text, "built in");
    EXPECT_EQ(profile.Refusal(), "");
    EXPECT_EQ(FormatProfile(profile), text) << "as `winnow calibrate -o` writes it";
  }
  const auto path = ::winnow::testing::DefaultModelPath();
  if (!path.has_value()) GTEST_SKIP() << "the default model is absent";
  EXPECT_NE(FindBuiltinProfile(HashModelFile(*path).Hex()), nullptr);
}

TEST(ModelHash, SeesEveryPartOfAFile) {
  const std::string path = ::winnow::testing::TemporaryFolder() + "/model";
  std::string content(40 << 20, 'x');
  const auto hash = [&] {
    std::ofstream(path, std::ios::binary) << content;
    return HashModelFile(path);
  };
  const Hash128 whole = hash();
  EXPECT_EQ(hash(), whole);
  for (const size_t at : {size_t{0}, size_t{16} << 20, (size_t{16} << 20) - 1}) {
    content[at] = 'y';
    EXPECT_NE(hash(), whole) << at;
    content[at] = 'x';
  }
  content.pop_back();
  EXPECT_NE(hash(), whole);
  ExpectInputError([] { HashModelFile("/nonexistent/model"); }, "cannot be read");
}

TEST(Gates, AreReadAsTheyAreWritten) {
  const std::vector<CompletionGate> gates = ParseGates("residual=sketch", "5.1+2+5.0");
  const std::vector<CompletionGate> expected = {{1, -1}, {4, 0}, {4, 1}};
  EXPECT_EQ(gates, expected);
  EXPECT_EQ(FormatGates(gates), "2+5.0+5.1");
  for (const char* bad : {"0", "", "1+", "1.", "1.x", "-1", "1.-1", "a", "99999999999"}) {
    EXPECT_THROW(ParseGates("residual=sketch", bad), Error) << bad;
  }
  EXPECT_THROW(ParseArm("select=sketch,off=1"), Error);
  EXPECT_THROW(ParseArm("select=sketch,residual=none,off=1"), Error);
}

TEST(AutoArm, IsDenseBelowTheBreakEven) {
  EXPECT_EQ(AutoArm{}.For(100'000).arm, "dense");
  const AutoArm automatic{.arm = "select=sketch", .source = "a profile", .break_even_tokens = 2048};
  EXPECT_EQ(automatic.For(2047).arm, "dense");
  EXPECT_EQ(automatic.For(2047).reason,
            "a prompt of 2047 tokens: a profile pays from 2048 on this machine");
  EXPECT_EQ(automatic.For(2048).arm, "select=sketch");
  EXPECT_TRUE(automatic.planes(2048).empty());
  EXPECT_FALSE(automatic.planes(2049).empty());
  const AutoArm never{
      .arm = "select=sketch", .source = "a profile", .break_even_tokens = kNeverPays};
  EXPECT_EQ(never.For(1 << 30).arm, "dense");
}

}  // namespace
}  // namespace winnow
