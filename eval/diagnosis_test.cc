// The figures of one head against what they must be where that is known, and the run that takes
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention/attention_probe.h"
#include "core/error.h"
#include "core/rng.h"
#include "eval/diagnosis_report.h"
#include "eval/diagnosis_run.h"
#include "ops/kv_store.h"
#include "policy/arm.h"
#include "policy/residual/residual_layer_test.h"
#include "testing/expect_error.h"
#include "testing/fake_backbone.h"

namespace winnow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::winnow::testing::ExpectError;
using ::winnow::testing::FakeBackbone;
using ::winnow::testing::FakeShape;
using ::winnow::testing::MappedModel;
using ::winnow::testing::NewMappedModel;

// Sums of a few hundred terms of order 1 in double, and exponentials of scores of order 10, round
// by less than 1e-13; two orders above it.
constexpr double kRounding = 1e-11;

// A head over 200 tokens, three of them generated, with copies that are exact.
struct Head {
  static constexpr int64_t kTokens = 200;
  static constexpr int64_t kDim = 8;

  explicit Head(uint64_t seed) {
    Rng rng(seed);
    for (int64_t c = 0; c < kDim; ++c) query.push_back(1.5 * rng.Normal());
    for (int64_t i = 0; i < kTokens * kDim; ++i) keys.push_back(rng.Normal());
    for (int64_t i = 0; i < kTokens * kDim; ++i) values.push_back(rng.Normal());
    means = {query, std::vector<double>(kDim, 0.25)};
  }
  HeadView View() const {
    const std::array<int64_t, 2> shape{kTokens, kDim};
    return {.scaled_query = query,
            .keys = {keys.data(), shape},
            .values = {values.data(), shape},
            .key_copies = {keys.data(), shape},
            .value_copies = {values.data(), shape},
            .means = &means,
            .page_tokens = 32,
            .n_generated = 3,
            .seed = 5};
  }
  std::vector<double> query, keys, values;
  ResaMeans means;
};

DiagnosisOptions Options() {
  DiagnosisOptions options;
  options.fraction = 0.2;
  options.ks = {0, 8, 100, 1000};
  return options;
}

const CompletionFigures& Of(const HeadFigures& figures, const DiagnosisOptions& options,
                            Completion completion) {
  for (size_t i = 0; i < options.completions.size(); ++i) {
    if (options.completions[i] == completion) return figures.completions[i];
  }
  throw std::out_of_range("no such completion");
}

TEST(DiagnoseHead, SelectionAloneIsAttentionOverWhatWasRead) {
  const Head head(1);
  const DiagnosisOptions options = Options();
  const HeadFigures figures = DiagnoseHead(head.View(), options);
  // By hand: K = 0 reads 4 sinks, the prompt's last 16 and 3 generated tokens.
  std::vector<int64_t> all(Head::kTokens);
  std::iota(all.begin(), all.end(), int64_t{0});
  std::vector<int64_t> anchors = {0, 1, 2, 3};
  for (int64_t i = 181; i < Head::kTokens; ++i) anchors.push_back(i);
  const HeadView view = head.View();
  const PartialAttention truth = AttendRows(view.scaled_query, view.keys, view.values, all);
  const PartialAttention read = AttendRows(view.scaled_query, view.keys, view.values, anchors);
  double difference = 0;
  double norm = 0;
  for (size_t c = 0; c < truth.out.size(); ++c) {
    difference += std::abs(read.out[c] - truth.out[c]);
    norm += std::abs(truth.out[c]);
  }
  const CompletionFigures& none = figures.completions[0];
  ASSERT_THAT(none.error_at, SizeIs(4));
  EXPECT_NEAR(none.error_at[0], difference / norm, kRounding);
  EXPECT_NEAR(figures.middle_share, 1 - std::exp(read.log_mass - truth.log_mass), kRounding);
  EXPECT_EQ(none.residual_share, 0);
  EXPECT_EQ(none.error, none.error_no_subtraction);
  EXPECT_EQ(figures.Gain(0), 0);
}

TEST(DiagnoseHead, EverythingRetrievedLeavesNoError) {
  const HeadFigures figures = DiagnoseHead(Head(2).View(), Options());
  for (const CompletionFigures& c : figures.completions) EXPECT_LT(c.error_at.back(), kRounding);
  EXPECT_THAT(figures.recovery, SizeIs(4));
  EXPECT_EQ(figures.recovery.front(), 0);
  EXPECT_EQ(figures.recovery.back(), 1);
  EXPECT_LT(figures.recovery[1], figures.recovery[2]);
}

// Estimates that are exact: from exact copies, from a sample of all, from the prior where the query
// is its mean. What counts the retrieved tokens twice is then the paper's ExactNoSub.
TEST(DiagnoseHead, ExactEstimatesHaveNoError) {
  const Head head(3);
  DiagnosisOptions options = Options();
  options.sample_tokens = Head::kTokens;
  const HeadFigures figures = DiagnoseHead(head.View(), options);
  EXPECT_GT(figures.completions[0].error, 0.01);
  EXPECT_GT(figures.exact_no_subtraction, 0.01);
  for (const Completion exact : {Completion::kSketch, Completion::kResa, Completion::kSample}) {
    const CompletionFigures& c = Of(figures, options, exact);
    EXPECT_LT(c.error, kRounding);
    EXPECT_NEAR(c.log_partition_error, 0, kRounding);
    EXPECT_NEAR(c.error_no_subtraction, figures.exact_no_subtraction, kRounding);
    EXPECT_NEAR(c.residual_share, figures.top.leak, kRounding);
  }
  EXPECT_NE(Of(figures, options, Completion::kCentroid).error, 0);
}

// Equal tokens in a page are their own mean, and their keys have no variance.
TEST(DiagnoseHead, PagesOfEqualTokensHaveExactMeans) {
  Head head(4);
  for (int64_t i = 0; i < Head::kTokens; ++i) {
    for (int64_t c = 0; c < Head::kDim; ++c) {
      head.keys[i * Head::kDim + c] = head.keys[i / 32 * 32 * Head::kDim + c];
      head.values[i * Head::kDim + c] = head.values[i / 32 * 32 * Head::kDim + c];
    }
  }
  const DiagnosisOptions options = Options();
  const HeadFigures figures = DiagnoseHead(head.View(), options);
  for (const Completion c : {Completion::kCentroid, Completion::kCumulant}) {
    EXPECT_LT(Of(figures, options, c).error, kRounding);
    EXPECT_NEAR(Of(figures, options, c).log_partition_error, 0, kRounding);
  }
  EXPECT_EQ(figures.score_gap, 0);
}

// Features that are the softmax kernel itself, one for each unit vector that keys are drawn from:
// log φ_k[f] = 0 where the key is the f-th, no feature else, and log φ_q[f] = q·u_f.
TEST(DiagnoseHead, FeaturesThatAreTheKernelAreExact) {
  Head head(7);
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  std::fill(head.keys.begin(), head.keys.end(), 0.0);
  std::vector<float> log_phi_keys(Head::kTokens * Head::kDim, kNone);
  Rng rng(9);
  for (int64_t t = 0; t < Head::kTokens; ++t) {
    const auto f = static_cast<int64_t>(rng.Below(Head::kDim));
    head.keys[t * Head::kDim + f] = 1;
    log_phi_keys[t * Head::kDim + f] = 0;
  }
  DiagnosisOptions options = Options();
  options.completions = {Completion::kNone, Completion::kPhi};
  HeadView view = head.View();
  view.phi = {head.query, {log_phi_keys.data(), {Head::kTokens - 3, Head::kDim}}};
  const HeadFigures figures = DiagnoseHead(view, options);
  const CompletionFigures& phi = Of(figures, options, Completion::kPhi);
  EXPECT_GT(figures.completions[0].error, 0.01);
  EXPECT_LT(phi.error, kRounding);
  EXPECT_NEAR(phi.log_partition_error, 0, kRounding);
  EXPECT_NEAR(phi.error_no_subtraction, figures.exact_no_subtraction, kRounding);
  for (const double error : phi.error_at) EXPECT_LT(error, kRounding);

  view.phi = {};  // no maps: nothing stands for the unread
  const HeadFigures abstained = DiagnoseHead(view, options);
  EXPECT_EQ(abstained.completions[1].error, abstained.completions[0].error);
  EXPECT_EQ(abstained.completions[1].residual_share, 0);
}

TEST(DiagnoseHead, LeakageIsWhatTheSetLeavesOut) {
  const Head head(5);
  DiagnosisOptions options = Options();
  options.ks = {20};
  const HeadFigures figures = DiagnoseHead(head.View(), options);
  // ceil(0.2 · 197) − 20 anchors = 20 retrieved, with 3 generated tokens on top.
  EXPECT_EQ(figures.top.tokens, 43);
  EXPECT_NEAR(figures.top.leak, figures.middle_share * (1 - figures.recovery[0]), kRounding);
  EXPECT_LE(figures.top.leak, figures.top.tight);
  EXPECT_LE(figures.top.tight, figures.top.paper_form);
  options.routing = {.pages = 7, .tokens = Head::kTokens};
  EXPECT_EQ(DiagnoseHead(head.View(), options).routed.leak, 0);
  options.routing = {.pages = 1, .tokens = 8};
  EXPECT_GT(DiagnoseHead(head.View(), options).routed.leak, figures.top.leak);
}

TEST(DiagnoseHead, APromptOfAnchorsHasNoMiddle) {
  Head head(6);
  HeadView view = head.View();
  for (TensorView<const double, 2>* rows :
       {&view.keys, &view.values, &view.key_copies, &view.value_copies}) {
    *rows = rows->Slice(0, 20);
  }
  const HeadFigures figures = DiagnoseHead(view, Options());
  EXPECT_TRUE(std::isnan(figures.entropy_nats));
  EXPECT_TRUE(std::isnan(figures.recovery[0]));
  EXPECT_EQ(figures.middle_share, 0);
  for (const CompletionFigures& c : figures.completions) EXPECT_EQ(c.error, 0);
  EXPECT_EQ(figures.top.leak, 0);
}

TEST(MeanFigures, LeavesOutWhatIsNotDefined) {
  HeadFigures a{.entropy = 1, .score_gap = std::nan(""), .recovery = {0.5}};
  HeadFigures b{.entropy = 2, .score_gap = std::nan(""), .recovery = {std::nan("")}};
  const HeadFigures figures[] = {a, b};
  const HeadFigures mean = MeanFigures(figures);
  EXPECT_EQ(mean.entropy, 1.5);
  EXPECT_EQ(mean.recovery[0], 0.5);
  EXPECT_TRUE(std::isnan(mean.score_gap));
}

TEST(DiagnosisOptions, BadOnesAreNamed) {
  const auto expect = [](const auto& change, const char* message) {
    DiagnosisOptions options;
    change(options);
    ExpectError([&] { options.Validate(); }, ErrorKind::kUsage, message);
  };
  DiagnosisOptions().Validate();
  expect([](DiagnosisOptions& o) { o.fraction = -1; }, "cannot be read");
  expect([](DiagnosisOptions& o) { o.fraction = 1.5; }, "above 1");
  expect([](DiagnosisOptions& o) { o.ks = {}; }, "at least one");
  expect([](DiagnosisOptions& o) { o.ks = {2, 1}; }, "ascending");
  expect([](DiagnosisOptions& o) { o.ks = {2, 2}; }, "twice");
  expect([](DiagnosisOptions& o) { o.completions.push_back(Completion::kResa); }, "twice");
  expect([](DiagnosisOptions& o) { o.sample_tokens = 0; }, "at least 1");
  ExpectError([] { ParseCompletion("centriod"); }, ErrorKind::kUsage, "did you mean 'centroid'?");
}

class RunDiagnosisTest : public ::testing::Test {
 protected:
  RunDiagnosisTest() {
    Rng rng(3);
    for (int i = 0; i < 150; ++i) prompt_.push_back(static_cast<TokenId>(rng.Below(101)));
    options_.ks = {4, 16};
    options_.fraction = 0.25;
  }

  std::unique_ptr<Engine> MakeEngine(ThreadPool* pool, int64_t context = 0) {
    const EngineOptions options = {.context_tokens = context,
                                   .kv_dtype = DType::kF32,
                                   .prefill_chunk = 64,
                                   .planes = ArmPlanes({DiagnosisArm(options_)})};
    return std::make_unique<Engine>(&backbone_, nullptr, pool, options);
  }
  std::optional<DiagnosisRun> Run(ThreadPool* pool, const DiagnosisHooks& hooks = {}) {
    return RunDiagnosis(MakeEngine(pool).get(), pool, backbone_.config(), prompt_, 3, options_,
                        hooks);
  }

  FakeBackbone backbone_{FakeShape{.windows = {0, 40, 0}}};
  std::vector<TokenId> prompt_;
  DiagnosisOptions options_;
};

TEST_F(RunDiagnosisTest, TakesFiguresOfGlobalLayersWithoutChangingTheRun) {
  ThreadPool pool(2);
  std::vector<int64_t> positions;
  const std::optional<DiagnosisRun> run =
      Run(&pool, {.on_position = [&](int64_t position, int64_t total) {
        positions.push_back(position);
        EXPECT_EQ(total, 3);
      }});
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(run->n_prompt, 150);
  EXPECT_EQ(run->n_positions, 3);
  EXPECT_EQ(run->budget, 18);  // ceil(0.25 · 150) − 20
  EXPECT_THAT(run->layers, ElementsAre(0, 2));
  EXPECT_THAT(run->local_layers, ElementsAre(1));
  EXPECT_THAT(positions, ElementsAre(0, 1, 2));
  EXPECT_THAT(run->figures, SizeIs(3 * 2 * 4));

  Request plain;
  plain.tokens = prompt_;
  plain.max_new_tokens = 4;
  plain.arm = "dense";
  EXPECT_EQ(MakeEngine(&pool)->Run(std::move(plain)).tokens, run->tokens);
  for (const HeadFigures& head : run->HeadMeans()) {
    EXPECT_GT(head.entropy, 0);
    EXPECT_LE(head.entropy, 1 + kRounding);
    for (const CompletionFigures& c : head.completions) EXPECT_TRUE(std::isfinite(c.error));
    // Four bits a channel of keys and values of order 1 are far better than nothing.
    EXPECT_LT(Of(head, options_, Completion::kSketch).error, 0.5 * head.completions[0].error);
  }
}

TEST_F(RunDiagnosisTest, IsTheSameForAnyNumberOfThreads) {
  ThreadPool one(1);
  ThreadPool three(3);
  const std::optional<DiagnosisRun> a = Run(&one);
  const std::optional<DiagnosisRun> b = Run(&three);
  ASSERT_TRUE(a.has_value() && b.has_value());
  EXPECT_EQ(PointsCsv(*a, options_), PointsCsv(*b, options_));
  EXPECT_EQ(ToJson(*a, options_).dump(), ToJson(*b, options_).dump());
}

// The head that the run looked at is the engine's: the same from queries and keys that a probe
// copies out of another run.
TEST_F(RunDiagnosisTest, FiguresAreThoseOfTheProbedQueriesAndKeys) {
  ThreadPool pool(1);
  options_.completions = {Completion::kNone};
  const std::optional<DiagnosisRun> run = Run(&pool);
  ASSERT_TRUE(run.has_value());
  const ModelConfig& config = backbone_.config();
  int64_t prompt_rows = 0;
  int64_t steps = 0;
  AttentionProbe probe;
  probe.on_prompt = [&](int layer, int64_t first, TensorView<const float, 3> q) {
    if (layer != 2) return;
    EXPECT_EQ(first, prompt_rows);
    prompt_rows += q.shape[0];
  };
  probe.on_token = [&](int layer, std::span<const float> q, const PagedKv& kv) {
    if (layer != 2 || steps++ > 0) return;
    EXPECT_EQ(kv.n_tokens, 151);
    const auto* first = reinterpret_cast<const float*>(kv.Keys(0, 1));  // f32, of KV head 1
    double score = 0;
    double best = -std::numeric_limits<double>::infinity();
    double second = best;
    for (int64_t t = 0; t < kv.n_tokens; ++t) {
      first = reinterpret_cast<const float*>(kv.Keys(t / 32, 1)) + t % 32 * config.head_dim;
      score = 0;
      for (int c = 0; c < config.head_dim; ++c) {
        score += static_cast<double>(q[3 * config.head_dim + c]) * config.attention_scale *
                 static_cast<double>(first[c]);
      }
      second = std::max(second, std::min(best, score));
      best = std::max(best, score);
    }
    EXPECT_NEAR(run->At(0, 1, 3).score_gap, best - second, kRounding);
  };
  const std::unique_ptr<Engine> engine = MakeEngine(&pool);
  for (int again = 0; again < 2; ++again) {  // no prefix is reused where the prompt is watched
    prompt_rows = 0;
    Request request;
    request.tokens = prompt_;
    request.max_new_tokens = 2;
    request.probe = &probe;
    EXPECT_EQ(engine->Run(std::move(request)).reused_tokens, 0);
    EXPECT_EQ(prompt_rows, 150);
  }
  EXPECT_EQ(steps, 2);
}

TEST_F(RunDiagnosisTest, EndsEarlyOrSaysWhyItCannotRun) {
  ThreadPool pool(1);
  EXPECT_FALSE(Run(&pool, {.should_stop = [] { return true; }}).has_value());
  const auto run_in = [&](int64_t context) {
    return RunDiagnosis(MakeEngine(&pool, context).get(), &pool, backbone_.config(), prompt_, 5,
                        options_, {});
  };
  EXPECT_EQ(run_in(153)->n_positions, 3);
  EXPECT_EQ(run_in(151)->n_positions, 1);
  ExpectError([&] { run_in(150); }, ErrorKind::kInput, "150");
  FakeBackbone local(FakeShape{.windows = {40, 40, 40}});
  ExpectError(
      [&] {
        RunDiagnosis(MakeEngine(&pool).get(), &pool, local.config(), prompt_, 1, options_, {});
      },
      ErrorKind::kInput, "every layer of the model is local");
}

// Against the maps evaluated by hand at the first step, for the last head of the last layer.
TEST_F(RunDiagnosisTest, FeaturesAreThoseOfTheModelsMaps) {
  ThreadPool pool(2);
  const ModelConfig& config = backbone_.config();
  const MappedModel model = NewMappedModel({.n_layers = config.n_layers,
                                            .query_heads = config.query_heads,
                                            .kv_heads = config.kv_heads,
                                            .head_dim = config.head_dim,
                                            .trained_tokens = "152",
                                            .omit_layers = {0}});
  options_.fraction = 0.01;  // anchors alone are read
  options_.completions = {Completion::kNone, Completion::kPhi};
  options_.maps = &model.maps;
  const std::optional<DiagnosisRun> run = Run(&pool);
  ASSERT_TRUE(run.has_value());
  // No maps of the first layer; 153 tokens, at the third step, are more than they were trained on.
  const auto same = [&](int64_t position, size_t layer) {
    const HeadFigures& head = run->At(position, layer, 3);
    return head.completions[1].error == head.completions[0].error;
  };
  EXPECT_TRUE(same(0, 0));
  EXPECT_FALSE(same(0, 1));
  EXPECT_FALSE(same(1, 1));
  EXPECT_TRUE(same(2, 1));

  AttentionProbe probe;
  int64_t steps = 0;
  probe.on_token = [&](int layer, std::span<const float> q, const PagedKv& kv) {
    if (layer != 2 || steps++ > 0) return;
    FeatureMapScratch scratch;
    std::vector<double> log_phi(model.maps.shape().n_features);
    FeatureState middle(std::ssize(log_phi), config.head_dim);
    std::vector<float> k(config.head_dim);
    std::vector<float> v(config.head_dim);
    const std::vector<double> query(q.end() - config.head_dim, q.end());
    double mass = 0;
    for (int64_t t = 4; t < 150 - 16; ++t) {
      LoadKv(kv, 1, t, k.data(), v.data());
      const std::vector<double> key(k.begin(), k.end());
      LogFeatures(model.maps.Key(2, 1), key, scratch, log_phi);
      middle.Add(log_phi, std::vector<double>(v.begin(), v.end()));
      mass += std::exp(std::inner_product(key.begin(), key.end(), query.begin(), 0.0) *
                       static_cast<double>(config.attention_scale));
    }
    LogFeatures(model.maps.Query(2, 3), query, scratch, log_phi);
    // Features of keys are kept as float: log φ of order 1 to 10 rounds by less than 1e-6.
    EXPECT_NEAR(run->At(0, 1, 3).completions[1].log_partition_error,
                middle.EstimateLogMass(log_phi, 0) - std::log(mass), 1e-5);
  };
  Request request;
  request.tokens = prompt_;
  request.max_new_tokens = 2;
  request.probe = &probe;
  MakeEngine(&pool)->Run(std::move(request));
  EXPECT_EQ(steps, 1);
}

TEST_F(RunDiagnosisTest, IsReportedWhole) {
  ThreadPool pool(2);
  const std::optional<DiagnosisRun> run = Run(&pool);
  ASSERT_TRUE(run.has_value());
  const nlohmann::ordered_json record = ToJson(*run, options_);
  EXPECT_EQ(record.at("layers").size(), 2u);
  EXPECT_EQ(record.at("layers").at(1).at("layer"), 2);
  EXPECT_EQ(record.at("layers").at(1).at("heads").size(), 4u);
  const auto& head = record.at("layers").at(0).at("heads").at(2);
  EXPECT_EQ(head.at("completions").at(1).at("residual"), "centroid");
  EXPECT_EQ(head.at("completions").at(1).at("error_at_k").size(), 2u);
  EXPECT_TRUE(std::isnan(head.at("completions").at(0).at("log_partition_error").get<double>()));

  const std::string csv = PointsCsv(*run, options_);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 1 + 3 * 2 * 4);
  EXPECT_THAT(csv, HasSubstr("\n2,2,3,"));
  EXPECT_THAT(DiagnosisTable(*run, options_), HasSubstr("centroid"));
  for (const FigureFile& figure : DiagnosisFigures(*run, options_, "a < b")) {
    EXPECT_THAT(figure.svg, HasSubstr("a &lt; b"));
    EXPECT_THAT(figure.svg, ::testing::EndsWith("</svg>\n"));
  }
}

}  // namespace
}  // namespace winnow
