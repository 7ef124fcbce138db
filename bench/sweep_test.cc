// Sweeps over small grids: what they name, what a row holds, what their outputs say.
#include "bench/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "bench/sweep_report.h"
#include "bench/synthetic_layers.h"
#include "ops/reference.h"
#include "policy/arm.h"
#include "testing/expect_error.h"

namespace winnow {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::winnow::testing::ExpectError;

constexpr SyntheticHeads kHeads{.query_heads = 4, .kv_heads = 2, .head_dim = 64};

SweepOptions Small(const std::vector<std::string>& list) {
  SweepOptions options{.tokens = {1024, 2048}, .heads = kHeads, .n_layers = 2, .repetitions = 1};
  SetSweep(list, &options);
  return options;
}

SweepRun RunAll(const SweepOptions& options) {
  ThreadPool pool(1);
  return RunSweep(pool, options,
                  {.should_stop = [] { return false; }, .progress = [](std::string_view) {}});
}

size_t Count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

TEST(SetSweep, NamesStandForThePapersValuesOrNameTheirOwn) {
  const SweepOptions options = Small({"p", "KC=0:7", "solver=FW"});
  EXPECT_THAT(options.pages, ElementsAre(8, 16, 32, 64));
  EXPECT_THAT(options.candidates, ElementsAre(0, 7));
  EXPECT_THAT(options.solvers, ElementsAre("fw"));
  EXPECT_THAT(options.iterations, ElementsAre(12));
  EXPECT_THAT(Small({"iterations"}).solvers, ElementsAre("eg"));
  EXPECT_THAT(Small({"iterations", "solver"}).solvers, ElementsAre("softmax", "eg", "fw"));
  // Softmax has no iterations.
  EXPECT_EQ(SweepCells(Small({"iterations", "solver", "P"})), 2 * 4 * (1 + 2 * 3));
}

TEST(SetSweep, RefusesWhatItDoesNotKnow) {
  const auto expect = [](const std::vector<std::string>& list, const std::string& message) {
    ExpectError([&] { Small(list); }, ErrorKind::kUsage, message);
  };
  expect({}, "known: P, Kc, solver, iterations");
  expect({"P", "iteration"}, "did you mean 'iterations'?");
  expect({"Kp"}, "did you mean 'Kc'?");
  expect({"solver=ef"}, "did you mean 'eg'?");
  expect({"P="}, "is no whole number");
  expect({"P=8:"}, "is no whole number");
  expect({"Kc=8x"}, "'8x' is no whole number");
  expect({"P", "Kc", "P=3"}, "twice");
}

TEST(CheckSweep, RefusesNumbersOutOfRange) {
  const auto expect = [](SweepOptions options, ErrorKind kind, const std::string& message) {
    ExpectError([&] { CheckSweep(options); }, kind, message);
  };
  expect(Small({"P=0"}), ErrorKind::kUsage, "0 is not in 1 to");
  expect(Small({"P=33"}), ErrorKind::kUsage,
         "33 pages of 32 tokens are more than a context of 1024");
  expect(Small({"Kc=-1"}), ErrorKind::kUsage, "-1 is not in 0 to");
  expect(Small({"iterations=100001"}), ErrorKind::kUsage, "100001 is not in 0 to 100000");
  expect(Small({"solver=eg:eg"}), ErrorKind::kUsage, "eg twice");
  SweepOptions options = Small({"P=8"});
  options.tokens = {1000};
  expect(options, ErrorKind::kUsage, "1000 is not in 1024 to");
  options.tokens = {1040};
  expect(options, ErrorKind::kUsage, "no multiple of 32");
  options.tokens = {};
  expect(options, ErrorKind::kUsage, "tokens has no values");
  options.tokens = {1024, 1024};
  expect(options, ErrorKind::kUsage, "twice");
  options.tokens = {1 << 22};
  options.heads = {.query_heads = 512, .kv_heads = 512, .head_dim = 512};
  options.n_layers = 1024;
  expect(options, ErrorKind::kResource, "fewer layers (--sweep-layers)");
}

TEST(RunSweep, HasARowForEachCell) {
  const SweepRun run = RunAll(Small({"P=2:4", "Kc=16", "solver", "iterations=1:3"}));
  EXPECT_TRUE(run.complete);
  ASSERT_EQ(run.rows.size(), 2u * 2 * 5);
  std::set<std::string> arms;
  for (const SweepRow& row : run.rows) {
    SCOPED_TRACE(row.arm);
    arms.insert(row.arm);
    EXPECT_GT(row.dense_ms, 0);
    EXPECT_GT(row.sparse_ms, 0);
    EXPECT_NEAR(row.routing + row.solver_share + row.kernel + row.other, 1, 1e-9);
    for (const double share : {row.routing, row.kernel}) EXPECT_GT(share, 0);
    EXPECT_GE(row.other, -1e-9);
    EXPECT_EQ(row.solver_share > 0, row.solver != "softmax");
    EXPECT_LT(row.bytes_read, row.bytes_dense);
    // Keys and values of 2 heads of 64, f16.
    EXPECT_EQ(row.bytes_dense, row.tokens * 2 * 2 * 64 * 2);
    // The first page, three at the end (64 recent tokens never begin a page there), and Kc.
    EXPECT_GE(row.tokens_read, 16 + 64);
    EXPECT_LE(row.tokens_read, 16 + 4 * 32);
    ASSERT_EQ(row.certificate.has_value(), row.solver != "softmax");
    if (!row.certificate) continue;
    EXPECT_GE(row.certificate->gap, 0);
    // √g of the plain projection, √(2G) of the entropic one.
    const double factor = row.solver == "eg" ? 2 : 1;
    EXPECT_NEAR(row.certificate->distance, std::sqrt(factor * row.certificate->gap), 1e-9);
    EXPECT_EQ(row.certificate->value_distance.has_value(), row.solver == "eg");
    EXPECT_LE(row.certificate->iterations, static_cast<double>(*row.iterations));
  }
  EXPECT_EQ(arms.size(), 10u);
}

TEST(RunSweep, MoreIterationsHaveSmallerGaps) {
  const SweepRun run = RunAll(Small({"solver=eg:fw", "iterations=1:64"}));
  ASSERT_EQ(run.rows.size(), 8u);
  for (size_t i = 0; i < run.rows.size(); i += 2) {
    EXPECT_LT(run.rows[i + 1].certificate->gap, run.rows[i].certificate->gap) << run.rows[i].arm;
  }
}

TEST(RunSweep, KeepsWhatWasMeasuredWhenItIsStopped) {
  const SweepOptions options = Small({"P=2:4:8"});
  ThreadPool pool(1);
  int asked = 0;
  // Asked before each context and each round: two of a cell.
  const SweepRun run =
      RunSweep(pool, options,
               {.should_stop = [&] { return ++asked > 4; }, .progress = [](std::string_view) {}});
  EXPECT_FALSE(run.complete);
  EXPECT_EQ(run.rows.size(), 1u);
  const SweepSubject subject{.shape = "test", .n_threads = 1};
  EXPECT_EQ(SweepToJson(run, options, subject).at("complete"), false);
  // Without a row there is nothing to draw, and nothing fails.
  EXPECT_TRUE(SweepFigures({}, options, subject).empty());
}

TEST(SweepReport, SaysWhatWasMeasured) {
  const SweepOptions options = Small({"P=2:4", "Kc=8:16:32", "solver=softmax:fw"});
  const SweepRun run = RunAll(options);
  const SweepSubject subject{.shape = "a < b", .n_threads = 2};
  const nlohmann::ordered_json json = SweepToJson(run, options, subject);
  EXPECT_EQ(json.at("schema"), "winnow.sweep/1");
  EXPECT_EQ(json.at("query_heads"), 4);
  ASSERT_EQ(json.at("rows").size(), 24u);
  EXPECT_TRUE(json.at("rows").at(0).at("certificate").is_null());
  EXPECT_TRUE(json.at("rows").at(0).at("iterations").is_null());
  EXPECT_EQ(json.at("rows").at(1).at("iterations"), 12);
  EXPECT_TRUE(json.at("rows").at(1).at("certificate").at("gap_max").is_number());
  EXPECT_TRUE(json.at("rows").at(1).at("certificate").at("value_distance_max").is_null());
  const std::string table = SweepTable(run, options, subject);
  EXPECT_THAT(table, AllOf(HasSubstr("4/2 heads of 64, f16, 2 layers"), HasSubstr("fw")));
  EXPECT_EQ(Count(table, "\n"), 2 + 1 + 24 + 3u);

  std::set<std::string> names;
  for (const FigureFile& figure : SweepFigures(run, options, subject)) {
    names.insert(figure.name);
    EXPECT_THAT(figure.svg, AllOf(HasSubstr("a &lt; b"), Not(HasSubstr("nan"))));
    if (figure.name == "scaling.svg") continue;
    // The paper, and a cell for each row; softmax has no gap.
    EXPECT_EQ(Count(figure.svg, "<rect"), 1u + (figure.name == "gap.svg" ? 12 : 24)) << figure.name;
    EXPECT_EQ(Count(figure.svg, ">Kc<"), 4u);  // panels
    EXPECT_THAT(figure.svg, HasSubstr("solver fw 12, tokens 2048"));
  }
  EXPECT_THAT(names, ElementsAre("bytes.svg", "gap.svg", "kernel.svg", "ratio.svg", "routing.svg",
                                 "scaling.svg", "solver.svg", "time.svg"));
}

// Reading every page is dense attention: the sweep's two sides see the same keys and values.
TEST(SyntheticLayers, EverythingReadIsDense) {
  ThreadPool pool(2);
  const std::string arm = "select=vashista,P=32,Kc=0,dense_layers=0";
  const SyntheticLayers layers(
      pool, {.heads = kHeads, .n_tokens = 1024, .n_layers = 2, .planes = ArmPlanes({arm})});
  DenseRound dense(pool, layers);
  SparseRound sparse(pool, layers, arm);
  dense();
  sparse();
  EXPECT_EQ(sparse.out(), dense.out());
  EXPECT_GT(sparse.TotalMs(), 0);
}

TEST(SyntheticLayers, AreTheSameForAnyNumberOfThreads) {
  const auto last_out = [](int n_threads) {
    ThreadPool pool(n_threads);
    const SyntheticLayers layers(pool, {.heads = kHeads, .n_tokens = 4096, .n_layers = 3});
    DenseRound dense(pool, layers);
    dense();
    return dense.out();
  };
  EXPECT_EQ(last_out(1), last_out(3));
}

}  // namespace
}  // namespace winnow
