// Arms beside dense over a small plain model, and what is reported of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>

#include "core/error.h"
#include "core/rng.h"
#include "eval/arm_runs.h"
#include "eval/evaluation.h"
#include "eval/report.h"
#include "model/backbone.h"
#include "testing/fake_backbone.h"
#include "testing/paths.h"
#include "testing/tiny_gguf.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;
using ::winnow::testing::FakeBackbone;
using ::winnow::testing::FakeLogits;
using ::winnow::testing::FakeShape;

const std::vector<std::string> kArms = {"dense", "auto"};

// Under "auto" the model's logits are changed by `change`: a stand-in for an arm that errs.
class ArmRunsTest : public ::testing::Test {
 protected:
  ArmRunsTest() {
    Rng rng(3);
    for (int i = 0; i < 100; ++i) {
      sample_.tokens.push_back(static_cast<TokenId>(rng.Below(101)));
    }
    sample_.max_new_tokens = 12;
    backbone_.on_logits = [this](std::span<float> row) {
      if (arm_ == "auto" && change_) change_(row);
    };
    hooks_.on_arm = [this](std::string_view arm) { arm_ = arm; };
  }

  std::vector<ArmRun> Run(const ArmRunOptions& options = {}) {
    return RunArms(&engine_, sample_, kArms, options, hooks_).value();
  }

  // Logits of the unchanged model before each of `tokens`, the model's own arithmetic.
  std::vector<std::vector<float>> Expected(const std::vector<TokenId>& tokens) {
    std::vector<TokenId> all = sample_.tokens;
    all.insert(all.end(), tokens.begin(), tokens.end());
    arm_ = "dense";
    const auto logits = FakeLogits(&backbone_, all);
    const auto first = logits.begin() + static_cast<int64_t>(sample_.tokens.size()) - 1;
    return {first, first + static_cast<int64_t>(tokens.size())};
  }

  ThreadPool pool_{1};
  FakeBackbone backbone_{FakeShape{}};
  Engine engine_{&backbone_, nullptr, &pool_, {.kv_dtype = DType::kF32, .prefill_chunk = 64}};
  EvalSample sample_;
  ArmRunHooks hooks_;
  std::string arm_;
  std::function<void(std::span<float>)> change_;
};

TEST_F(ArmRunsTest, TheSameArmIsTheSame) {
  const std::vector<ArmRun> runs = Run();
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].arm, "dense");
  for (const ArmRun& run : runs) {
    EXPECT_EQ(run.error, "");
    EXPECT_EQ(run.result.tokens, runs[0].result.tokens);
    EXPECT_FALSE(run.first_difference.has_value());
    ASSERT_TRUE(run.fidelity.has_value());
    EXPECT_EQ(run.fidelity->positions, 12);
    // Pages are reused, all but the tokens behind the last whole page: another order of additions,
    // some 1e-6 on a logit, and its square in KL.
    EXPECT_NEAR(run.fidelity->MeanKl(), 0, 1e-9);
    EXPECT_NEAR(run.fidelity->PerplexityRatio(), 1, 1e-4);
  }
  EXPECT_EQ(runs[1].result.reused_tokens, 96);
  EXPECT_EQ(engine_.active_requests(), 0);
}

TEST_F(ArmRunsTest, FidelityIsAlongDensesTokens) {
  // Token 7 always wins: the arm's own answer leaves dense's at once, the comparison must not.
  change_ = [](std::span<float> row) { row[7] += 50; };
  const std::vector<ArmRun> runs = Run();
  const std::vector<TokenId>& dense = runs[0].result.tokens;
  EXPECT_EQ(runs[1].result.tokens, std::vector<TokenId>(12, 7));
  const auto differs =
      std::find_if(dense.begin(), dense.end(), [](TokenId token) { return token != 7; });
  ASSERT_NE(differs, dense.end());
  EXPECT_EQ(runs[1].first_difference, differs - dense.begin());

  const auto logits = Expected(dense);
  Fidelity expected;
  for (size_t i = 0; i < logits.size(); ++i) {
    std::vector<float> changed = logits[i];
    change_(changed);
    expected.Add(logits[i], changed, dense[i]);
  }
  ASSERT_TRUE(runs[1].fidelity.has_value());
  EXPECT_EQ(runs[1].fidelity->same_top1, expected.same_top1);
  // Logits agree to 2e-4 (engine_test), so each of 12 positions may differ by about twice that.
  EXPECT_NEAR(runs[1].fidelity->kl, expected.kl, 12 * 4e-4);
  EXPECT_NEAR(runs[1].fidelity->nll_arm, expected.nll_arm, 12 * 4e-4);
  EXPECT_NEAR(runs[1].fidelity->nll_dense, expected.nll_dense, 12 * 4e-4);
  EXPECT_GT(runs[1].fidelity->PerplexityRatio(), 100);
}

TEST_F(ArmRunsTest, ContinuationsAreForcedOnEveryArm) {
  sample_.continuation = {5, 9, 5, 9, 100, 0, 3};
  sample_.max_new_tokens = 7;
  change_ = [](std::span<float> row) {
    for (float& x : row) x *= 0.5F;
  };
  const std::vector<ArmRun> runs = Run();
  const auto logits = Expected(sample_.continuation);
  Fidelity expected;
  for (size_t i = 0; i < logits.size(); ++i) {
    std::vector<float> changed = logits[i];
    change_(changed);
    expected.Add(logits[i], changed, sample_.continuation[i]);
  }
  for (const ArmRun& run : runs) {
    EXPECT_EQ(run.result.tokens, sample_.continuation);
    EXPECT_FALSE(run.first_difference.has_value());
    EXPECT_EQ(run.fidelity->positions, 7);
    EXPECT_NEAR(run.fidelity->nll_dense, expected.nll_dense, 7 * 4e-4);
  }
  EXPECT_NEAR(runs[0].fidelity->kl, 0, 1e-12);
  EXPECT_NEAR(runs[1].fidelity->kl, expected.kl, 7 * 4e-4);
  EXPECT_NEAR(runs[1].fidelity->nll_arm, expected.nll_arm, 7 * 4e-4);
}

TEST_F(ArmRunsTest, AFailingArmKeepsItsErrorAndAFailingReferenceEndsAll) {
  change_ = [](std::span<float> row) { row[0] = std::numeric_limits<float>::quiet_NaN(); };
  sample_.answers = {"x"};
  const std::vector<ArmRun> runs = Run();
  EXPECT_EQ(runs[0].error, "");
  EXPECT_THAT(runs[1].error, HasSubstr("not finite"));
  EXPECT_FALSE(runs[1].fidelity.has_value());
  EXPECT_EQ(runs[1].score, 0);

  backbone_.on_logits = change_;
  EXPECT_THROW(Run(), Error);
  EXPECT_EQ(engine_.active_requests(), 0);
}

TEST_F(ArmRunsTest, StoppingDropsTheSample) {
  for (const int after : {0, 5, 25}) {
    int polls = 0;
    hooks_.should_stop = [&] { return polls++ >= after; };
    EXPECT_FALSE(RunArms(&engine_, sample_, kArms, {}, hooks_).has_value());
    EXPECT_EQ(engine_.active_requests(), 0);
  }
}

TEST_F(ArmRunsTest, FreshPrefillReadsTheWholePromptUnderEachArm) {
  for (const ArmRun& run : Run({.fresh_prefill = true})) EXPECT_EQ(run.result.reused_tokens, 0);
}

TEST(ReferenceFirstTest, DenseLeads) {
  EXPECT_EQ(ReferenceFirst({}), (std::vector<std::string>{"dense"}));
  EXPECT_EQ(ReferenceFirst({"auto"}), kArms);
  EXPECT_EQ(ReferenceFirst({"auto", "dense"}), kArms);
  EXPECT_THROW(ReferenceFirst({"dence"}), Error);
  EXPECT_THROW(ReferenceFirst({"auto", "auto"}), Error);
  EXPECT_THROW(ReferenceFirst({"dense", "dense"}), Error);
}

TEST(JudgeTest, ChoosesItsTest) {
  const std::vector<double> hits(100, 1);
  std::vector<uint64_t> own;
  for (uint64_t i = 0; i < 100; ++i) own.push_back(i);
  const Verdict same = Judge(hits, hits, own, {});
  EXPECT_FALSE(same.bootstrap);
  EXPECT_TRUE(same.noninferior);
  EXPECT_EQ(same.mcnemar_p, 1);
  EXPECT_EQ(same.difference, 0);

  std::vector<double> worse = hits;
  std::fill_n(worse.begin(), 20, 0);
  const Verdict lost = Judge(worse, hits, own, {});
  EXPECT_EQ(lost.counts.lost, 20);
  EXPECT_EQ(lost.counts.gained, 0);
  EXPECT_FALSE(lost.noninferior);
  EXPECT_LT(lost.harm_p, 1e-5);
  EXPECT_LT(lost.interval.high, 0);

  std::vector<double> fractional = hits;
  fractional[3] = 0.8;
  const Verdict partial = Judge(fractional, hits, own, {});
  EXPECT_TRUE(partial.bootstrap);
  EXPECT_NEAR(partial.difference, -0.002, 1e-12);
  EXPECT_TRUE(partial.noninferior);

  // Two contexts of 50 questions, one of them lost: the bootstrap sees that all depends on two.
  std::vector<uint64_t> shared(100, 0);
  std::fill_n(shared.begin(), 50, 1);
  std::fill_n(worse.begin(), 50, 0);
  const Verdict clustered = Judge(worse, hits, shared, {});
  EXPECT_TRUE(clustered.bootstrap);
  EXPECT_EQ(clustered.interval.low, -1);
  EXPECT_EQ(clustered.interval.high, 0);
}

// A sample and its two runs, made up.
void AddTo(EvalReport* report, int64_t index, double auto_score) {
  EvalSample sample;
  sample.task = "needle";
  sample.length = 4096;
  sample.index = index;
  sample.cluster = static_cast<uint64_t>(index);
  sample.answers = {"x"};
  ArmRun dense;
  dense.arm = "dense";
  dense.score = 1;
  dense.seconds = 2;
  dense.fidelity = Fidelity{.positions = 4, .kl = 0, .same_top1 = 4, .nll_dense = 2, .nll_arm = 2};
  dense.result.ledger.decode.attention = {.tokens_read = 10, .tokens_resident = 10};
  ArmRun other = dense;
  other.arm = "auto";
  other.score = auto_score;
  other.fidelity =
      Fidelity{.positions = 4, .kl = 0.4, .same_top1 = 3, .nll_dense = 2, .nll_arm = 3};
  other.result.ledger.decode.attention = {.tokens_read = 5, .tokens_resident = 10};
  report->Add(sample, {dense, other});
}

TEST(EvalReportTest, CellsAndTable) {
  EvalReport report({});
  AddTo(&report, 0, 1);
  AddTo(&report, 1, 0);
  const nlohmann::ordered_json cells = report.CellsJson();
  ASSERT_EQ(cells.size(), 2u);
  EXPECT_EQ(cells[0].at("arm"), "dense");
  EXPECT_TRUE(cells[0].at("against_dense").is_null());
  const auto& cell = cells[1];
  EXPECT_EQ(cell.at("samples"), 2);
  EXPECT_EQ(cell.at("hits"), 1);
  EXPECT_EQ(cell.at("score"), 0.5);
  EXPECT_EQ(cell.at("against_dense").at("lost"), 1);
  EXPECT_EQ(cell.at("against_dense").at("method"), "tango");
  EXPECT_EQ(cell.at("against_dense").at("noninferior"), false);
  EXPECT_NEAR(cell.at("fidelity").at("kl").get<double>(), 0.1, 1e-12);
  EXPECT_NEAR(cell.at("fidelity").at("perplexity_ratio").get<double>(), std::exp(0.25), 1e-12);
  EXPECT_EQ(cell.at("fidelity").at("top1_agreement"), 0.75);
  EXPECT_EQ(cell.at("decode").at("kv_tokens_read"), 10);
  EXPECT_EQ(cell.at("seconds"), 4);
  EXPECT_TRUE(cell.at("tpot_ms").is_null());  // no answer had two tokens
  EXPECT_THAT(report.Table(), HasSubstr("not shown"));
  EXPECT_THAT(report.Table(), HasSubstr("1/2"));
}

// A whole evaluation with a tiny model that answers nonsense.
class TinyEvaluation : public ::testing::Test {
 protected:
  TinyEvaluation() {
    const std::string path = testing::TemporaryFolder() + "/tiny.gguf";
    testing::WriteTinyGguf(path, {.context_length = 2048});
    tokenizer_ = Tokenizer::Load(path);
    backbone_ = LoadCpuBackbone(path, &pool_);
    evaluation_.tasks = {&FindTask("variables"), &FindTask("book")};
    evaluation_.lengths = {500, 700};
    evaluation_.samples = 2;
    evaluation_.input = {.tokenizer = tokenizer_.get(), .book = &book_, .continuation_tokens = 9};
    evaluation_.arms = kArms;
  }

  // The report's cells, times left out, and the samples seen.
  nlohmann::ordered_json Run(const std::function<bool()>& should_stop = nullptr) {
    Engine engine(backbone_.get(), tokenizer_.get(), &pool_, {});
    EvalReport report({});
    samples_.clear();
    complete_ = RunEvaluation(&engine, evaluation_,
                              {.arms = {.should_stop = should_stop},
                               .on_sample = [&](const EvalSample& sample, const auto& runs) {
                                 report.Add(sample, runs);
                                 for (const ArmRun& run : runs) {
                                   samples_.push_back(SampleJson(sample, run));
                                   samples_.back().erase("seconds");
                                   samples_.back().erase("ttft_ms");
                                   samples_.back().at("decode").erase("seconds");
                                 }
                               }});
    nlohmann::ordered_json cells = report.CellsJson();
    for (auto& cell : cells) {
      for (const char* time : {"seconds", "ttft_ms", "tpot_ms"}) cell.erase(time);
      cell.at("decode").erase("seconds");
    }
    return cells;
  }

  static std::string Text() {
    std::string text;
    for (int i = 0; i < 300; ++i) text += "Sentence " + std::to_string(i) + ". ";
    return text;
  }

  ThreadPool pool_{1};
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Backbone> backbone_;
  Book book_{{{.id = "book", .text = Text()}}};
  Evaluation evaluation_;
  std::vector<nlohmann::ordered_json> samples_;
  bool complete_ = false;
};

TEST_F(TinyEvaluation, IsDeterministicAndComplete) {
  CheckEvaluation(evaluation_, 2048);
  const nlohmann::ordered_json cells = Run();
  EXPECT_TRUE(complete_);
  EXPECT_EQ(cells.size(), 8u);  // tasks × lengths × arms
  EXPECT_EQ(samples_.size(), 16u);
  const auto samples = samples_;
  EXPECT_EQ(cells, Run());
  EXPECT_EQ(samples, samples_);
  for (const auto& cell : cells) {
    EXPECT_EQ(cell.at("failed"), 0);
    EXPECT_EQ(cell.at("hits").is_null(), cell.at("task") == "book");
    EXPECT_LT(cell.at("fidelity").at("kl").get<double>(), 1e-6);
  }
  EXPECT_EQ(samples.back().at("answer_tokens"), 9);
  EXPECT_TRUE(samples.back().at("answer").is_null());
  EXPECT_EQ(samples[0].at("prompt_hash"), samples[1].at("prompt_hash"));
  EXPECT_NE(samples[0].at("prompt_hash"), samples[2].at("prompt_hash"));
}

TEST_F(TinyEvaluation, AnswersAreScored) {
  evaluation_.lengths = {500};
  evaluation_.samples = 1;
  evaluation_.tasks = {};
  EvalSample sample;
  sample.task = "echo";
  sample.tokens = tokenizer_->Encode("What will it say?", true, false);
  sample.max_new_tokens = 6;
  sample.answers = {"\x7f nothing says this"};
  evaluation_.given = {sample};
  EXPECT_EQ(Run()[0].at("hits"), 0);
  const std::string said = samples_[0].at("answer");
  ASSERT_FALSE(said.empty());
  evaluation_.given[0].answers = {said};
  const nlohmann::ordered_json cells = Run();
  EXPECT_EQ(cells[0].at("hits"), 1);
  EXPECT_EQ(cells[1].at("hits"), 1);
  EXPECT_TRUE(cells[0].at("length").is_null());
}

TEST_F(TinyEvaluation, StoppedItKeepsWhatWasFinished) {
  Run([this] { return samples_.size() >= 6; });
  EXPECT_FALSE(complete_);
  EXPECT_EQ(samples_.size(), 6u);
}

}  // namespace
}  // namespace winnow
