// `winnow diagnose` as a program.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cli/harness_test.h"
#include "model/model_hash.h"
#include "testing/feature_maps.h"

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
using ::winnow::testing::ReadAll;
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

TEST(DiagnoseCommand, WrongFlagsAreRefusedBeforeTheModelIsLoaded) {
  const auto expect = [](const std::vector<std::string>& more, const std::string& message) {
    std::vector<std::string> args = {"diagnose", "-m", "/no/such", "-p", "x"};
    args.insert(args.end(), more.begin(), more.end());
    ExpectUsageError(RunWinnow(args), message);
  };
  expect({"--residual", "centriod"}, "did you mean 'centroid'?");
  expect({"--residual", "resa,resa"}, "twice");
  expect({"--residual", "phi"}, "--phi FILE");
  expect({"--phi", ""}, "--phi");
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

TEST(DiagnoseCommand, TakesFeatureMapsAmongTheEstimates) {
  const std::string model = TinyModel("mapped.gguf", {.context_length = 1024});
  const json info = json::parse(RunWinnow({"inspect", model, "--json"}).out);
  testing::RandomFeatureMaps maps{.n_layers = info.at("layers"),
                                  .query_heads = info.at("query_heads"),
                                  .kv_heads = info.at("kv_heads"),
                                  .head_dim = info.at("head_dim"),
                                  .model_hash = HashModelFile(model).Hex()};
  const std::string file = WriteFile("maps.safetensors", "");
  testing::WriteFeatureMaps(file, maps);
  const std::vector<std::string> args = {"diagnose", "-m",       model,    "-t",          "1",
                                         "-p",       Prose(150), "-q",     "--positions", "1",
                                         "--ks",     "4",        "--json", "--phi",       file};
  const Finished result = RunWinnow(args);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json record = json::parse(result.out);
  EXPECT_EQ(record.at("phi"), file);
  const json phi = record.at("mean").at("completions").at(6);
  EXPECT_EQ(phi.at("residual"), "phi");
  for (const char* key : {"error", "gain", "log_partition_error"}) {
    EXPECT_TRUE(phi.at(key).is_number()) << key;
  }
  maps.model_hash = std::string(32, '0');
  testing::WriteFeatureMaps(file, maps);
  const Finished other = RunWinnow(args);
  EXPECT_EQ(other.exit_code, 3);
  EXPECT_THAT(other.err, HasSubstr("maps.safetensors"));
}

TEST(DiagnosePrefill, RefusesWrongFlagsBeforeTheModelIsLoaded) {
  const auto expect = [](const std::vector<std::string>& more, const std::string& message) {
    std::vector<std::string> args = {"diagnose", "-m", "/no/such", "-p", "x"};
    args.insert(args.end(), more.begin(), more.end());
    ExpectUsageError(RunWinnow(args), message);
  };
  expect({"--remove", "3"}, "--prefill");
  expect({"--prefill", "--remove", "three"}, "from 1");
  expect({"--prefill", "--remove", "0"}, "from 1");
  expect({"--prefill", "--remove", "5-3"}, "ends before");
  expect({"--prefill", "--keep", "1.5"}, "--keep");
  expect({"--prefill", "--remove", "3", "--keep", "0.5"}, "--remove");
  expect({"--prefill", "--ks", "4"}, "--ks");
  EXPECT_EQ(Diagnose({"-p", "no documents", "--prefill"}).exit_code, 3);
}

TEST(DiagnosePrefill, WritesARecordAndSaysThatTheBoundIsVacuous) {
  const std::string folder = (fs::path(WriteFile("y", "")).parent_path() / "pruned").string();
  const std::string text = WriteFile("text.txt", Prose(60));
  const std::vector<std::string> args = {
      "-f", text,        "-p",      "Which?", "--chunk-tokens", "40",
      "-q", "--prefill", "--layer", "1",      "--remove",       "2,3-4"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), args.begin(), args.end());
    return Diagnose(more);
  };
  const Finished result = with({"--json", "--out", folder});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const json record = json::parse(result.out);
  EXPECT_EQ(record, json::parse(ReadAll(fs::path(folder) / "diagnose.json")));
  EXPECT_EQ(record.at("schema"), "winnow.diagnose_prefill/1");
  EXPECT_EQ(record.at("layers").size(), 2u);
  EXPECT_EQ(record.at("chunks").at(0).at("removed"), false);
  EXPECT_EQ(record.at("chunks").at(3).at("removed"), true);
  EXPECT_TRUE(record.at("layers").at(0).at("defect_bound").is_null());
  EXPECT_THAT(record.at("bound_missing").get<std::string>(), HasSubstr("gated"));
  EXPECT_EQ(record.at("certified"), false);
  const Finished page = with({});
  ASSERT_EQ(page.exit_code, 0) << page.err;
  EXPECT_THAT(page.out, AllOf(HasSubstr("chunks 2-4"), HasSubstr("bound cannot be completed"),
                              HasSubstr("vacuous"), HasSubstr("no promise for another")));
  EXPECT_EQ(with({"--layer", "3"}).exit_code, 2);
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

TEST_F(DiagnoseWithModel, PruningsPlainRunIsTheEnginesAndItsFiguresHold) {
  const std::string file =
      WriteFile("gate.txt", "The number that opens the garden gate is 7491.\n\n" + Prose(60));
  const std::vector<std::string> prompt = {
      "-f", file, "-p", "Which number opens the gate?", "--chunk-tokens", "24", "--json"};
  const auto run = [&](const std::string& command, std::vector<std::string> more) {
    more.insert(more.begin(), prompt.begin(), prompt.end());
    const Finished result = RunWinnow(Args(command, more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  };
  const json record = run("diagnose", {"--prefill", "--layer", "20", "--keep", "0.5"});
  const json answer = run("run", {"-n", "1", "--temp", "0"});
  EXPECT_EQ(record.at("prompt_tokens"), answer.at("prompt_tokens"));
  EXPECT_EQ(record.at("token"), answer.at("tokens").at(0));
  EXPECT_EQ(record.at("vacuous"), true);
  ASSERT_EQ(record.at("layers").size(), 10u);
  for (const json& layer : record.at("layers")) {
    const auto number = [&](const char* key) { return layer.at(key).get<double>(); };
    EXPECT_LE(number("deletion"), number("deletion_bound_observed"));  // Lemma 4.2
    EXPECT_LE(number("deletion_bound_observed"), number("deletion_bound"));
    for (const json& head : layer.at("heads")) {
      EXPECT_LE(head.at("eta").get<double>(), head.at("transferred").get<double>() + 1e-12);
    }
  }
}

}  // namespace
}  // namespace winnow
