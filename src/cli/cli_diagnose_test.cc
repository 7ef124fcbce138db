// `winnow diagnose` as a program.
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
using ::winnow::testing::ExpectUsageError;
using ::winnow::testing::Finished;
using ::winnow::testing::Prose;
using ::winnow::testing::RunWinnow;
using ::winnow::testing::TinyModel;
using ::winnow::testing::WithModel;
using ::winnow::testing::WriteFile;

Finished Diagnose(const std::vector<std::string>& more) {
  static const std::string kModel = TinyModel("diagnose.gguf", {.context_length = 1024});
  std::vector<std::string> args = {"diagnose", "-m", kModel, "-t", "1"};
  args.insert(args.end(), more.begin(), more.end());
  return RunWinnow(args);
}

std::string ReadAll(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(DiagnoseCommand, WrongFlagsAreRefusedBeforeTheModelIsLoaded) {
  const auto expect = [](const std::vector<std::string>& more, const std::string& message) {
    std::vector<std::string> args = {"diagnose", "-m", "/no/such", "-p", "x"};
    args.insert(args.end(), more.begin(), more.end());
    ExpectUsageError(RunWinnow(args), message);
  };
  expect({"--residual", "centriod"}, "did you mean 'centroid'?");
  expect({"--residual", "resa,resa"}, "twice");
  expect({"--ks", "8,4"}, "ascending");
  expect({"--fraction", "1.5"}, "--fraction");
  expect({"--positions", "0"}, "--positions");
  EXPECT_EQ(Diagnose({}).exit_code, 3);  // no prompt
  EXPECT_THAT(RunWinnow({"diagnose", "--help"}).out, HasSubstr("points.csv"));
}

TEST(DiagnoseCommand, WritesRecordPointsAndFigures) {
  const std::string folder = (fs::path(WriteFile("x", "")).parent_path() / "new/figures").string();
  const std::string text = WriteFile("text.txt", Prose(150));
  const std::vector<std::string> args = {"-f", text,     "-p",    "Which?",     "--positions",
                                         "2",  "--ks",   "4,16",  "--fraction", "0.25",
                                         "-q", "--json", "--out", folder};
  const Finished result = Diagnose(args);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const json record = json::parse(result.out);
  EXPECT_EQ(record, json::parse(ReadAll(fs::path(folder) / "diagnose.json")));
  EXPECT_EQ(record.at("schema"), "winnow.diagnose/1");
  EXPECT_EQ(record.at("positions"), 2);
  EXPECT_EQ(record.at("ks"), json({4, 16}));
  ASSERT_EQ(record.at("layers").size(), 3u);
  const json& head = record.at("layers").at(0).at("heads").at(0);
  EXPECT_TRUE(head.at("entropy_nats").is_number());
  EXPECT_EQ(head.at("completions").size(), 6u);
  EXPECT_TRUE(head.at("completions").at(0).at("log_partition_error").is_null());
  EXPECT_TRUE(head.at("completions").at(1).at("log_partition_error").is_number());
  EXPECT_THAT(ReadAll(fs::path(folder) / "points.csv"), StartsWith("position,layer,head,"));
  int figures = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".svg") continue;
    ++figures;
    EXPECT_THAT(ReadAll(entry.path()), AllOf(StartsWith("<svg "), HasSubstr("diagnose, ")));
  }
  EXPECT_EQ(figures, 9);
  // A diagnosis is never overwritten.
  ExpectUsageError(Diagnose({"-p", "x", "--out", folder}), "exists");
}

TEST(DiagnoseCommand, PrintsATableByLayer) {
  const Finished result =
      Diagnose({"-p", Prose(60), "--residual", "centroid", "--positions", "1", "--ks", "8"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("H_mid"), HasSubstr("C(8)"), HasSubstr("none"),
                                HasSubstr("centroid"), HasSubstr("\nall ")));
}

class DiagnoseWithModel : public WithModel {};

TEST_F(DiagnoseWithModel, SketchedTokensAreTheBestEstimate) {
  const auto book = testing::SharedDataPath("sherlock_holmes.txt");
  if (!book) GTEST_SKIP() << "the shared text is absent";
  const std::string page = WriteFile("page.txt", ReadAll(*book).substr(20000, 1500));
  const Finished result = RunWinnow(
      Args("diagnose", {"-f", page, "-p", "Who is it?", "--residual", "centroid,sketch", "--ks",
                        "16", "--fraction", "0.05", "--positions", "1", "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json record = json::parse(result.out);
  ASSERT_EQ(record.at("layers").size(), 30u);
  const json& completions = record.at("mean").at("completions");
  const auto error = [&](int i) { return completions.at(i).at("error").get<double>(); };
  EXPECT_LT(error(2), 0.5 * error(1));
  EXPECT_LT(error(2), 0.5 * error(0));
}

}  // namespace
}  // namespace winnow
