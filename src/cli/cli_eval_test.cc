// `winnow eval` and `winnow compare` as programs.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cli/harness_test.h"

namespace winnow {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::winnow::testing::ChildProcess;
using ::winnow::testing::ExpectUsageError;
using ::winnow::testing::Finished;
using ::winnow::testing::JsonLines;
using ::winnow::testing::Prose;
using ::winnow::testing::ReadAll;
using ::winnow::testing::RunWinnow;
using ::winnow::testing::TinyModel;
using ::winnow::testing::WithModel;
using ::winnow::testing::WriteFile;

std::vector<std::string> Tiny(const std::string& command, const std::vector<std::string>& more) {
  static const std::string kModel = TinyModel("eval.gguf", {.context_length = 1024});
  std::vector<std::string> args = {command, "-m", kModel, "-t", "1"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

Finished Eval(const std::vector<std::string>& more) { return RunWinnow(Tiny("eval", more)); }

TEST(EvalCommand, WrongFlagsAreRefusedBeforeTheModelIsLoaded) {
  ExpectUsageError(RunWinnow({"eval", "-m", "/no/such", "--task", "neadle"}),
                   "did you mean 'needle'?");
  ExpectUsageError(RunWinnow({"eval", "-m", "/no/such", "--arm", "dence"}),
                   "did you mean 'dense'?");
  ExpectUsageError(RunWinnow({"eval", "-m", "/no/such", "--arm", "auto", "--arm", "auto"}),
                   "given twice");
  ExpectUsageError(RunWinnow({"eval", "-m", "/no/such", "--length", "500,500"}), "given twice");
  ExpectUsageError(RunWinnow({"eval", "-m", "/no/such", "--task", "book,book"}), "given twice");
  ExpectUsageError(RunWinnow({"eval", "--margin", "0"}), "--margin");
  ExpectUsageError(RunWinnow({"compare", "-m", "/no/such", "-p", "x", "--arm", "dence"}),
                   "did you mean 'dense'?");
  EXPECT_THAT(RunWinnow({"eval", "--help"}).out,
              AllOf(HasSubstr("keyvalue"), HasSubstr("--json"), HasSubstr("winnow eval")));
}

TEST(EvalCommand, EmptyValuesAreRefused) {
  for (const char* flag : {"--task", "--text", "--jsonl", "--out", "--arm", "--length", "-m"}) {
    ExpectUsageError(RunWinnow({"eval", flag, ""}), "winnow: ");
  }
  for (const char* flag : {"-p", "-f", "--arm", "-m"}) {
    ExpectUsageError(RunWinnow({"compare", flag, ""}), "winnow: ");
  }
}

TEST(EvalCommand, ResultsThatCannotBeWrittenAreAnError) {
  for (const char* folder : {"/dev/null/results", "/proc/results"}) {
    const Finished result =
        Eval({"--task", "keyvalue", "--length", "1000", "--samples", "1", "--out", folder});
    EXPECT_EQ(result.exit_code, 4) << result.err;
    EXPECT_THAT(result.err, HasSubstr(std::string("cannot make the folder ") + folder));
  }
  const fs::path folder = fs::path(WriteFile("x", "")).parent_path() / "full";
  fs::create_directories(folder);
  fs::create_symlink("/dev/full", folder / "results.json");
  const Finished full = Eval({"--task", "keyvalue", "--length", "1000", "--samples", "1", "--json",
                              "--out", folder.string()});
  EXPECT_EQ(full.exit_code, 4) << full.err;
  EXPECT_THAT(full.err, HasSubstr("results.json: No space left"));
  EXPECT_EQ(json::parse(full.out).at("schema"), "winnow.eval/1");
}

TEST(EvalCommand, BadInputIsNamed) {
  const auto expect = [](const std::vector<std::string>& args, const std::string& message) {
    const Finished result = Eval(args);
    EXPECT_EQ(result.exit_code, 3) << result.err;
    EXPECT_THAT(result.err, HasSubstr(message));
  };
  expect({"--task", "keyvalue", "--length", "4096"}, "beyond the context of 1024");
  expect({"--task", "keyvalue", "--length", "60"}, "too short for keyvalue");
  expect({"--task", "needle", "--length", "900"}, "--text");
  expect({"--task", "needle", "--length", "900", "--text", "/no/such"}, "/no/such");
  expect({"--task", "needle", "--length", "900", "--text", WriteFile("short.txt", "Too short.")},
         "too short");
  const std::string broken = WriteFile("broken.jsonl", "\n{\"context\": \n");
  expect({"--jsonl", broken}, broken + ":2: not a line of JSON");
  const Finished as_json = Eval({"--json", "--jsonl", broken});
  EXPECT_EQ(json::parse(as_json.out).at("error").at("kind"), "input");
}

TEST(EvalCommand, WritesWhatItPrints) {
  const std::string folder = (fs::path(WriteFile("x", "")).parent_path() / "new/results").string();
  const std::string book = WriteFile("book.txt", Prose(3000));
  const std::string lines = WriteFile(
      "mine.jsonl",
      R"({"context": "a", "question": "b", "answer": "c", "max_new_tokens": 3, "task": "mine"})");
  const std::vector<std::string> args = {"--text",         book,    "--task",   "needle,book",
                                         "--continuation", "5",     "--length", "900,1000",
                                         "--samples",      "2",     "--jsonl",  lines,
                                         "--json",         "--out", folder};
  const Finished result = Eval(args);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json results = json::parse(result.out);
  EXPECT_EQ(results, json::parse(ReadAll(fs::path(folder) / "results.json")));
  EXPECT_EQ(results.at("schema"), "winnow.eval/1");
  EXPECT_EQ(results.at("arms"), (std::vector<std::string>{"dense", "auto"}));
  EXPECT_TRUE(results.at("complete").get<bool>());
  EXPECT_EQ(results.at("cells").size(), 10u);  // (2 tasks × 2 lengths + 1) × 2 arms
  const std::vector<json> samples = JsonLines(ReadAll(fs::path(folder) / "samples.jsonl"));
  ASSERT_EQ(samples.size(), 18u);  // (8 + 1) × 2
  EXPECT_EQ(samples.back().at("task"), "mine");
  EXPECT_TRUE(samples.back().at("length").is_null());
  EXPECT_THAT(result.err, HasSubstr("sample 9 of 9: mine"));
  // An evaluation is never overwritten.
  ExpectUsageError(Eval({"--task", "keyvalue", "--length", "1000", "--out", folder}), "exists");

  const Finished table = Eval({"--task", "variables", "--length", "400", "--samples", "1", "-q"});
  EXPECT_EQ(table.exit_code, 0);
  EXPECT_THAT(table.out, AllOf(HasSubstr("McNemar"), HasSubstr("variables"), HasSubstr("auto")));
  EXPECT_EQ(table.err, "");
}

TEST(EvalCommand, CtrlCKeepsWhatWasFinished) {
  ChildProcess child(
      Tiny("eval", {"--task", "variables", "--length", "400", "--samples", "100000", "--json"}));
  ASSERT_TRUE(child.WaitForError("sample 2 of"));
  child.Signal(SIGINT);
  const Finished result = child.Finish();
  EXPECT_EQ(result.exit_code, 130);
  const json results = json::parse(result.out);
  EXPECT_FALSE(results.at("complete").get<bool>());
  EXPECT_GE(results.at("cells").at(0).at("samples").get<int>(), 2);
}

TEST(CompareCommand, ShowsArmsSideBySide) {
  const Finished result =
      RunWinnow(Tiny("compare", {"-p", "Say something.", "-n", "6", "--json", "--arm", "auto"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json object = json::parse(result.out);
  EXPECT_EQ(object.at("schema"), "winnow.compare/1");
  const json& arms = object.at("arms");
  ASSERT_EQ(arms.size(), 2u);
  EXPECT_EQ(arms[0].at("arm"), "dense");
  EXPECT_EQ(arms[1].at("arm"), "auto");
  EXPECT_EQ(arms[0].at("tokens"), arms[1].at("tokens"));
  EXPECT_TRUE(arms[1].at("first_difference").is_null());
  EXPECT_EQ(arms[1].at("fidelity").at("top1_agreement"), 1);
  EXPECT_EQ(arms[1].at("prefill").at("tokens"), object.at("prompt_tokens"));
  const Finished table = RunWinnow(Tiny("compare", {"-p", "Say something.", "-n", "6"}));
  EXPECT_THAT(table.out,
              AllOf(HasSubstr("--- dense"), HasSubstr("--- auto"), HasSubstr("ms/token")));
  EXPECT_TRUE(object.at("complete").get<bool>());
  EXPECT_EQ(RunWinnow(Tiny("compare", {})).exit_code, 3);
  const Finished bytes = RunWinnow(Tiny("compare", {"-p", "caf\xe9"}));
  EXPECT_EQ(bytes.exit_code, 3);
  EXPECT_THAT(bytes.err, HasSubstr("the question is not UTF-8"));
}

class EvalWithModel : public WithModel {};

TEST_F(EvalWithModel, AnInterruptedComparisonIsStillJson) {
  ChildProcess child(
      Args("compare", {"-p", "x", "--json", "-f", WriteFile("long.txt", Prose(5000))}),
      testing::ErrorStream::kTerminal);
  ASSERT_TRUE(child.WaitForError("reading"));
  child.Signal(SIGINT);
  const Finished result = child.Finish();
  EXPECT_EQ(result.exit_code, 130);
  const json object = json::parse(result.out);
  EXPECT_FALSE(object.at("complete").get<bool>());
  EXPECT_TRUE(object.at("arms").empty());
}

TEST_F(EvalWithModel, FindsNeedlesInABook) {
  const auto book = testing::SharedDataPath("sherlock_holmes.txt");
  if (!book) GTEST_SKIP() << "the shared text is absent";
  const Finished result = RunWinnow(Args("eval", {"--text", *book, "--task", "needle", "--length",
                                                  "600", "--samples", "2", "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json report = json::parse(result.out);
  for (const json& cell : report.at("cells")) {
    EXPECT_EQ(cell.at("hits"), 2) << cell;
    EXPECT_LT(cell.at("fidelity").at("kl").get<double>(), 1e-4);
    EXPECT_THAT(result.err, Not(HasSubstr("failed")));
  }
}

}  // namespace
}  // namespace winnow
