// Arms that prune, through the program: what is foreseen and what it took, and /restore in a chat.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/harness_test.h"
#include "cli/prefill_costs_file.h"
#include "cli/user_cache.h"
#include "model/model_hash.h"

namespace winnow::testing {
namespace {

namespace fs = std::filesystem;
using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Wide tolerances: that something goes is what matters here, not what.
const std::string kPrune =
    "prefill=entroprefill,uncalibrated=1,layers=10,v=0,eps=0.99,eps_audit=0.98,Z_min=1e-6";

constexpr PrefillCosts kDearLayers = {.layer = {.linear = 1e-4, .quadratic = 1e-8},
                                      .last_linear = 1e-5,
                                      .score = 1e-9,
                                      .remove = 1e-9,
                                      .copy = 1e-12};
constexpr PrefillCosts kDearScores = {
    .layer = {.linear = 1e-6}, .last_linear = 1e-6, .score = 0.5, .remove = 0.5, .copy = 0.5};

class PruneCli : public WithModel {
 protected:
  void TearDown() override { fs::remove_all(fs::path(kCacheHome) / "winnow"); }

  // As if it had been measured here.
  static void Believe(const PrefillCosts& costs) {
    ModelFlags flags;
    flags.threads = 1;  // as WithModel runs it
    const MeasurementKey key = MakePrefillCostsKey(HashModelFile(*DefaultModelPath()).Hex(), flags);
    ASSERT_TRUE(UserCache().Write(key.FileName(), FormatPrefillCosts(key, costs)));
  }
  static std::vector<std::string> Reading(const std::string& arm) {
    static const std::string kNote = WriteFile("letters.txt", Prose(300));
    return {"-f", kNote, "--arm", arm, "-n", "6"};
  }
  static Finished Answer(const std::string& arm, const std::vector<std::string>& more) {
    std::vector<std::string> args = Reading(arm);
    args.insert(args.end(), {"-p", "What carries letters?"});
    args.insert(args.end(), more.begin(), more.end());
    return Run(args);
  }
  static json Record(const std::string& arm) {
    const Finished result = Answer(arm, {"--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("measuring")));
    return json::parse(result.out);
  }
};

TEST_F(PruneCli, TheRecordComparesWhatWasForeseen) {
  Believe(kDearLayers);
  const json record = Record(kPrune);
  const json& pruning = record.at("prefill").at("pruning");
  ASSERT_EQ(pruning.at("outcome"), "pruned") << pruning.at("reason");
  const json& cost = pruning.at("cost");
  const json& forecast = cost.at("forecast");
  EXPECT_EQ(forecast.at("pays"), true);
  EXPECT_EQ(forecast.at("first").at("layer"), 10);
  EXPECT_EQ(forecast.at("last").at("layer"), 10);
  EXPECT_LT(forecast.at("first").at("seconds").at("total"), forecast.at("full"));
  const auto n = record.at("prompt_tokens").get<double>();
  EXPECT_NEAR(cost.at("predicted").at("below").get<double>(), 10 * (1e-4 * n + 1e-8 * n * n), 1e-9);
  for (const char* side : {"predicted", "measured"}) {
    for (const char* part : {"below", "above", "auxiliary"}) {
      EXPECT_GT(cost.at(side).at(part).get<double>(), 0) << side << " " << part;
    }
  }
  const json& ideal = cost.at("ideal_saving");
  EXPECT_LE(ideal.at("low"), ideal.at("share"));
  EXPECT_LE(ideal.at("share"), ideal.at("high"));

  EXPECT_THAT(Answer(kPrune, {}).err,
              AllOf(HasSubstr("layers up to 10, above, choosing and copying: "),
                    HasSubstr("; foreseen "), HasSubstr(" without pruning; of equal layers ")));
}

TEST_F(PruneCli, WhatDoesNotPayIsLeftAlone) {
  Believe(kDearScores);
  const json left = Record(kPrune);
  const json& pruning = left.at("prefill").at("pruning");
  EXPECT_EQ(pruning.at("outcome"), "bypass_does_not_pay");
  EXPECT_THAT(pruning.at("reason").get<std::string>(), HasSubstr("it would not pay"));
  EXPECT_EQ(pruning.at("cost").at("forecast").at("pays"), false);
  EXPECT_EQ(left.at("tokens"), Record("dense").at("tokens"));
  const json insists = Record(kPrune + ",must_pay=0").at("prefill").at("pruning");
  EXPECT_EQ(insists.at("outcome"), "pruned");
  EXPECT_EQ(insists.at("cost").at("forecast").at("pays"), false);
}

TEST_F(PruneCli, WhatPrefillCostsIsMeasuredOnce) {
  const Finished first = Answer(kPrune, {"--json"});
  EXPECT_EQ(first.exit_code, 0);
  EXPECT_THAT(first.err, HasSubstr("measuring, once for this model and machine"));
  if (!fs::exists(fs::path(kCacheHome) / "winnow/prefill-costs")) {
    EXPECT_THAT(first.err, HasSubstr("whether pruning pays is not foreseen"));
    GTEST_SKIP() << "the machine is too busy to measure";
  }
  EXPECT_FALSE(
      json::parse(first.out).at("prefill").at("pruning").at("cost").at("predicted").is_null());
  Record(kPrune);
}

TEST_F(PruneCli, RestoreAnswersOverWhatWasDropped) {
  Believe(kDearLayers);
  std::vector<std::string> more = Reading(kPrune);
  more.emplace_back("--json");
  const Finished result = RunWinnow(
      Args("chat", more), "What carries letters?\n/restore\n/restore\nWhich season is it?\n");
  EXPECT_EQ(result.exit_code, 2);  // the second /restore has nothing left to do
  EXPECT_THAT(result.err, AllOf(HasSubstr("tokens were restored from layer 10"),
                                HasSubstr("the last answer is over everything already")));
  const std::vector<json> lines = JsonLines(result.out);
  ASSERT_EQ(lines.size(), 4u);
  const json& pruned = lines[0];
  const json& restored = lines[1];
  EXPECT_EQ(pruned.at("restored"), false);
  EXPECT_EQ(restored.at("restored"), true);
  EXPECT_EQ(restored.at("turn"), 1);
  EXPECT_EQ(restored.at("prompt_tokens"), pruned.at("prompt_tokens"));
  const json& document = restored.at("documents").at(0);
  EXPECT_LT(pruned.at("documents").at(0).at("kept"), document.at("tokens"));
  EXPECT_EQ(document.at("kept"), document.at("tokens"));
  const json& pruning = restored.at("prefill").at("pruning");
  EXPECT_EQ(pruning.at("resumed").at("layers"), 10);
  EXPECT_GT(pruning.at("resumed").at("tokens").get<int64_t>(), 250);
  EXPECT_EQ(pruning.at("reason"), "the request keeps everything");
  EXPECT_EQ(lines[2].at("error").at("kind"), "usage");
  // The conversation goes on from the new answer: with the first turn's question only once.
  EXPECT_EQ(lines[3].at("turn"), 2);
  const auto asked = restored.at("prompt_tokens").get<int64_t>();
  EXPECT_GT(lines[3].at("prompt_tokens").get<int64_t>(), asked);
  EXPECT_LT(lines[3].at("prompt_tokens").get<int64_t>(), asked + 60);
}

TEST_F(PruneCli, RestoreNeedsSomethingThatWasDropped) {
  const Finished result = RunWinnow(Args("chat", {"-n", "2"}), "/restore\nHello\n/restore\n");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("no question was answered yet"),
                                HasSubstr("without an --arm that prunes")));
}

}  // namespace
}  // namespace winnow::testing
