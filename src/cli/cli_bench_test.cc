// `winnow bench --sweep` as a program.
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
using ::testing::StartsWith;
using ::winnow::testing::ChildProcess;
using ::winnow::testing::ErrorStream;
using ::winnow::testing::ExpectUsageError;
using ::winnow::testing::Finished;
using ::winnow::testing::ReadAll;
using ::winnow::testing::RunWinnow;
using ::winnow::testing::WriteFile;
using Args = std::vector<std::string>;

// Of the smallest shape, on one thread.
Args Sweep(const std::string& list, const Args& more = {}) {
  Args args = {"bench",
               "-t",
               "1",
               "--sweep",
               list,
               "--shape",
               "smollm2-135m",
               "--sweep-layers",
               "1",
               "--sweep-tokens",
               "1024,2048"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(BenchSweep, WrongFlagsAreRefused) {
  ExpectUsageError(RunWinnow(Sweep("P,solvr")), "did you mean 'solver'?");
  ExpectUsageError(RunWinnow(Sweep("P=0")), "0 is not in 1 to");
  ExpectUsageError(RunWinnow(Sweep("P=64")), "more than a context of 1024");
  ExpectUsageError(RunWinnow(Sweep("P,P")), "twice");
  ExpectUsageError(RunWinnow({"bench", "--sweep", ""}), "known: P, Kc, solver, iterations");
  ExpectUsageError(RunWinnow(Sweep("P=8", {"-m", "default"})), "--sweep");
  ExpectUsageError(RunWinnow(Sweep("P=8", {"--arm", "dense"})), "--sweep");
  ExpectUsageError(RunWinnow({"bench", "--sweep-tokens", "1024"}), "--sweep");
  ExpectUsageError(RunWinnow({"bench", "--sweep", "P", "--shape", "llama-3.1-9b"}),
                   "did you mean 'llama-3.1-8b'?");
  ExpectUsageError(RunWinnow({"bench", "--sweep", "P", "--sweep-tokens", "1000"}),
                   "1000 is not in 1024 to");
}

TEST(BenchSweep, AContextBeyondMemoryIsRefusedWithWhatItTakes) {
  const Finished result =
      RunWinnow({"bench", "--sweep", "P", "--sweep-tokens", "4194304", "--sweep-layers", "1024"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, AllOf(HasSubstr("1024 layers of 4194304 tokens take 17"),
                                HasSubstr("TiB"), HasSubstr("are available")));
}

TEST(BenchSweep, WritesRowsAndHeatMaps) {
  const std::string folder = (fs::path(WriteFile("x", "")).parent_path() / "sweep").string();
  const Args args = Sweep("P=4:8,solver=softmax:eg", {"-r", "1", "--out", folder});
  Args json_args = args;
  json_args.emplace_back("--json");
  const Finished result = RunWinnow(json_args);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const json record = json::parse(result.out);
  EXPECT_EQ(record, json::parse(ReadAll(fs::path(folder) / "sweep.json")));
  EXPECT_EQ(record.at("schema"), "winnow.sweep/1");
  EXPECT_EQ(record.at("shape"), "smollm2-135m");
  EXPECT_EQ(record.at("kv_heads"), 3);
  EXPECT_EQ(record.at("n_layers"), 1);
  EXPECT_EQ(record.at("complete"), true);
  EXPECT_EQ(record.at("rows").size(), 2u * 2 * 2);
  EXPECT_THAT(ReadAll(fs::path(folder) / "time.svg"), StartsWith("<svg "));
  ExpectUsageError(RunWinnow(args), "exists");
}

TEST(BenchSweep, CtrlCKeepsWhatWasMeasured) {
  ChildProcess child(Sweep("P=4,solver=fw:eg,iterations=1:2000", {"-r", "100", "--json"}),
                     ErrorStream::kTerminal);
  ASSERT_TRUE(child.WaitForError("cell 2 of"));
  child.Signal(SIGINT);
  const Finished result = child.Finish();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  const json record = json::parse(result.out);
  EXPECT_EQ(record.at("complete"), false);
  EXPECT_GE(record.at("rows").size(), 1u);
  EXPECT_LT(record.at("rows").size(), 8u);
  EXPECT_THAT(result.err, HasSubstr("what was finished is reported"));
}

}  // namespace
}  // namespace winnow
