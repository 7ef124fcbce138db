// `auto` and `calibrate` through the program: which profile holds, from where on, and what is said
// about those that do not.
#include "cli/harness_test.h"

namespace winnow::testing {
namespace {

namespace fs = std::filesystem;
using ::nlohmann::json;
using ::testing::HasSubstr;

class AutoTest : public WithModel {
 protected:
  void TearDown() override { fs::remove_all(fs::path(kCacheHome) / "winnow"); }

  // One token after a prompt of about `words` words.
  static json Record(int words, std::vector<std::string> more) {
    const std::string file = WriteFile("document.txt", Prose(words));
    more.insert(more.end(), {"-f", file, "-p", "Which?", "-n", "3", "--json"});
    const Finished result = Run(more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  }
  // The built-in profile, changed.
  template <typename Edit>
  static std::string Profile(Edit edit) {
    std::ifstream in(std::string(WINNOW_PROFILES) + "/smollm2-135m-instruct-q4_1.json");
    json profile = json::parse(in);
    edit(profile);
    return WriteFile("profile.json", profile.dump());
  }
  // `winnow calibrate` on two prompts, one of which tests.
  static std::vector<std::string> Calibrate(std::vector<std::string> more) {
    std::string lines;
    for (const char* question : {"Which?", "Who?"}) {
      const json line = {{"context", Prose(500)},
                         {"question", question},
                         {"answer", "none"},
                         {"max_new_tokens", 6}};
      lines += line.dump() + "\n";
    }
    more.insert(more.end(), {"--no-generated", "--prompts", WriteFile("prompts.jsonl", lines),
                             "--samples", "1"});
    return Args("calibrate", more);
  }
};

TEST_F(AutoTest, TheBuiltInProfileRunsFromTheBreakEvenOn) {
  const json below = Record(600, {"--break-even", "4000"});
  EXPECT_EQ(below["arm"], "auto");
  EXPECT_EQ(below["arm_resolved"], "dense");
  EXPECT_EQ(below["break_even_tokens"], 4000);
  EXPECT_THAT(below["arm_reason"], HasSubstr("the built-in profile pays from 4000"));
  EXPECT_FALSE(below["decode"].contains("sparse"));

  const json above = Record(600, {"--break-even", "500"});
  EXPECT_THAT(above["arm_resolved"], HasSubstr("select=sketch"));
  EXPECT_THAT(above["arm_reason"], HasSubstr("the built-in profile, which pays from 500 tokens"));
  EXPECT_LT(above["decode"]["kv_tokens_read"], above["decode"]["kv_tokens_resident"]);

  const json dense = Record(600, {"--arm", "dense"});
  EXPECT_EQ(dense["arm_reason"], nullptr);
  EXPECT_EQ(dense["break_even_tokens"], nullptr);
  EXPECT_EQ(below["tokens"], dense["tokens"]);
}

// A busy machine keeps no measurement: a few tries, or there is nothing to test.
bool KeptABreakEven(fs::path* file) {
  for (int tries = 0; tries < 5; ++tries) {
    RunWinnow({"run", "-m", *DefaultModelPath(), "-t", "1", "-p", "Hi", "-n", "1", "-q"});
    std::error_code absent;
    for (const auto& entry :
         fs::directory_iterator(fs::path(kCacheHome) / "winnow/break-even", absent)) {
      *file = entry.path();
      return true;
    }
  }
  return false;
}

TEST_F(AutoTest, MeasuresTheBreakEvenOnce) {
  fs::path file;
  if (!KeptABreakEven(&file)) GTEST_SKIP() << "the machine is too busy to measure";
  json known = json::parse(std::ifstream(file));
  known["tokens"] = 12345;  // the next run has to believe it
  std::ofstream(file) << known;
  EXPECT_EQ(Record(10, {})["break_even_tokens"], 12345);
}

TEST_F(AutoTest, DamageInTheCacheIsPassedOver) {
  fs::path file;
  if (!KeptABreakEven(&file)) GTEST_SKIP() << "the machine is too busy to measure";
  std::ofstream(file) << "{";
  const Finished result = Run({"-p", "Hello", "-n", "2"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("passed over, it is not a break-even"));
}

TEST_F(AutoTest, WrongProfilesAreRefused) {
  const auto run = [](const std::string& file) {
    return Run({"-p", "Hello", "-n", "2", "--profile", file});
  };
  Finished result = run(Profile([](json& p) { p["model"]["hash"] = std::string(32, '0'); }));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("the profile is of another model"));
  result = run(Profile([](json& p) { p["model"]["head_dim"] = 128; }));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("the profile says head_dim 128, the model has 64"));
  result = run(Profile([](json& p) { p["decode"]["target"]["kl"] = -1; }));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("'decode.target.kl' must be"));
  result = run("/nonexistent");
  EXPECT_EQ(result.exit_code, 3);
  ExpectUsageError(Run({"-p", "Hello", "--arm", "dense", "--profile", "x.json"}),
                   "--profile says what --arm auto runs");
}

TEST_F(AutoTest, AProfileThatMissedItsTestIsNotRun) {
  const std::string file = Profile([](json& p) {
    p["decode"]["test"]["kl"] = 9;
    p["decode"]["missed"] = {"kl"};
  });
  const json record = Record(600, {"--profile", file, "--break-even", "1"});
  EXPECT_EQ(record["arm_resolved"], "dense");
  EXPECT_THAT(record["arm_reason"], HasSubstr("on its test prompts the mean KL was 9"));
}

TEST_F(AutoTest, InspectMeasuresNothing) {
  const Finished result = RunWinnow(Args("inspect", {"--json"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["sparsity_pays_from_tokens"], nullptr);
  EXPECT_FALSE(fs::exists(fs::path(kCacheHome) / "winnow"));
}

TEST_F(AutoTest, CalibrateWritesAProfileThatAutoRuns) {
  const Finished result = RunWinnow(
      Calibrate({"--target", "1", "--top1", "0", "--gates", "none", "--json", "-q", "--arm",
                 "select=sketch,budget=64", "--arm", "select=sketch,budget=128,residual=sketch"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json calibrated = json::parse(result.out);
  EXPECT_TRUE(calibrated["complete"]);
  EXPECT_EQ(calibrated["tried"].size(), 3U);
  const std::string written = calibrated["written"];
  EXPECT_THAT(written, ::testing::StartsWith(kCacheHome));
  const json record = Record(600, {"--break-even", "1"});
  EXPECT_EQ(record["arm_resolved"], calibrated["profile"]["decode"]["arm"]);
  EXPECT_THAT(record["arm_reason"], HasSubstr(written));

  // A cached profile that somebody spoilt gives way to the built-in one.
  std::ofstream(written) << "{}";
  EXPECT_THAT(Record(600, {"--break-even", "1"})["arm_reason"], HasSubstr("the built-in profile"));
}

TEST_F(AutoTest, CalibrateStopsWithoutAProfile) {
  // Nothing meets it.
  ChildProcess child(Calibrate({"--target", "1e-9"}));
  ASSERT_TRUE(child.WaitForError("select: "));
  child.Signal(SIGINT);
  const Finished result = child.Finish();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.err, HasSubstr("stopped before anything was found: no profile was written"));
  EXPECT_FALSE(fs::exists(fs::path(kCacheHome) / "winnow/profiles"));
}

TEST_F(AutoTest, CalibrateKeepsWhatWasFoundWhenItStops) {
  ChildProcess child(Calibrate({"--target", "10", "--top1", "0", "--json"}));
  ASSERT_TRUE(child.WaitForError("select: "));
  child.Signal(SIGINT);
  const Finished result = child.Finish();
  EXPECT_EQ(result.exit_code, 130);
  const json stopped = json::parse(result.out);
  EXPECT_EQ(stopped["complete"], false);
  EXPECT_EQ(stopped["profile"]["decode"]["search_complete"], false);
  EXPECT_GT(stopped["profile"]["decode"]["test"]["positions"], 0);
  EXPECT_TRUE(fs::exists(std::string(stopped["written"])));
}

TEST(CalibrateUsage, ContradictionsAreRefused) {
  ExpectUsageError(RunWinnow({"calibrate", "--target", "0"}), "--target");
  ExpectUsageError(RunWinnow({"calibrate", "--top1", "1.5"}), "--top1");
  ExpectUsageError(RunWinnow({"calibrate", "--no-generated"}), "--no-generated leaves no prompts");
  ExpectUsageError(RunWinnow({"calibrate", "--arm", "dense"}), "is no arm to choose");
  ExpectUsageError(RunWinnow({"calibrate", "--arm", "select=sketch,budget=64,mass=0.9"}),
                   "budget, mass and fraction contradict each other");
  ExpectUsageError(RunWinnow({"calibrate", "--gates", "some"}), "unknown choice 'some'");
  ExpectUsageError(RunWinnow({"calibrate", "-m", "synthetic:smollm2-135m"}),
                   "random weights: there is nothing to calibrate");
}

}  // namespace
}  // namespace winnow::testing
