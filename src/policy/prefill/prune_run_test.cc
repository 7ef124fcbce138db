#include "policy/prefill/prune_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <tuple>

#include "core/error.h"
#include "policy/arm.h"
#include "policy/prefill/observed_rows.h"
#include "policy/prefill/prune_rows_test.h"

namespace winnow {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

PruneModel TinyModel() {
  return {.hash = "abc",
          .n_layers = 6,
          .query_heads = 4,
          .kv_heads = 2,
          .global_layers = {1, 2, 3, 4, 5, 6}};
}

// Five chunks of 10 tokens; by default two of them have to go.
PruneProblem FiveChunks(int64_t first_proposal = 0) {
  return MakeProblem(
      {.chunk_tokens = std::vector<int64_t>(5, 10), .first_proposal = first_proposal});
}

// A run of "prefill=…" with layers 2 to 4, exact rows.
class TestRun {
 public:
  explicit TestRun(const std::string& params, PruneProblem problem = FiveChunks(),
                   PruneRunOptions options = {.float_rows = false})
      : problem_(std::move(problem)) {
    const std::unique_ptr<PrefillPolicy> policy =
        MakePrefillPolicy(params + ",uncalibrated=1,layers=2+3+4");
    run_ = policy->NewRun(problem_, UncalibratedProfile(policy->params, TinyModel()), options);
  }
  PruneDecision Observe(int layer, std::span<const double> rows) {
    const ObservedRows observed(problem_, rows);
    return run_->Observe(layer, observed.observation());
  }
  // Chunks with these masses in every row.
  PruneDecision ObserveMasses(int layer, const std::vector<double>& masses) {
    return Observe(layer, RowsWithMass(problem_, masses));
  }
  PruneRun& operator*() { return *run_; }
  PruneRun* operator->() { return run_.get(); }
  const PruneProblem& problem() const { return problem_; }

 private:
  PruneProblem problem_;
  std::unique_ptr<PruneRun> run_;
};

const std::vector<double> kLastTwoMatter = {0.01, 0.02, 0.03, 0.2, 0.3};
const std::vector<double> kFirstTwoMatter = {0.3, 0.2, 0.03, 0.02, 0.01};

TEST(PruneRun, AcceptsTheEarliestStableLayer) {
  TestRun run("prefill=entroprefill,keep=0.6");
  EXPECT_THAT(run->MonitoredLayers(), ElementsAre(2, 3, 4));
  EXPECT_FALSE(run.ObserveMasses(2, kLastTwoMatter).accept);
  const PruneDecision decision = run.ObserveMasses(3, kLastTwoMatter);
  EXPECT_TRUE(decision.accept);
  EXPECT_THAT(decision.removed, ElementsAre(0, 1));
  EXPECT_EQ(run->Finish(), PruneOutcome::kPruned);

  const PrefillAccount& record = run->record();
  EXPECT_EQ(record.accepted_layer, 3);
  EXPECT_EQ(record.removed_tokens, 20);
  EXPECT_EQ(record.target_saving, 20);
  EXPECT_EQ(record.reason, "");
  EXPECT_EQ(record.profile, "uncalibrated");
  ASSERT_EQ(record.layers.size(), 2u);
  EXPECT_EQ(record.layers[0].verdict, PruneVerdict::kStreakNotMet);
  const PruneLayerAccount& layer = record.layers[1];
  EXPECT_EQ(layer.verdict, PruneVerdict::kAccepted);
  EXPECT_EQ(layer.set_change, 0);
  EXPECT_EQ(layer.streak, 1);
  EXPECT_NEAR(layer.document_mass, 0.56, 1e-6);  // means in float32
  EXPECT_THAT(layer.audit_mean, Each(testing::DoubleNear(0.03, 1e-12)));
  EXPECT_GE(layer.saving_bound, 20);
  EXPECT_GE(layer.gap(), 0);
  for (int h = 0; h < 4; ++h) {
    EXPECT_LE(layer.head_removed[h], layer.head_envelope[h] + 1e-6);
  }
  EXPECT_FALSE(record.chunks[0].kept);
  EXPECT_TRUE(record.chunks[4].kept);
  EXPECT_EQ(record.chunks[1].first, 13);
  EXPECT_NEAR(record.chunks[4].mass, 0.3 / 0.56, 1e-6);
  EXPECT_GT(record.chunks[4].score, record.chunks[0].score);
}

TEST(PruneRun, AChangeOfSetStartsTheStreakAnew) {
  TestRun run("prefill=entroprefill,keep=0.6,theta=0.2");
  EXPECT_FALSE(run.ObserveMasses(2, kLastTwoMatter).accept);
  EXPECT_FALSE(run.ObserveMasses(3, kFirstTwoMatter).accept);
  // {2, 3, 4} and {0, 1, 2} stay: 4 of 5 differ.
  EXPECT_DOUBLE_EQ(run->record().layers[1].set_change, 0.8);
  EXPECT_TRUE(run.ObserveMasses(4, kFirstTwoMatter).accept);
}

TEST(PruneRun, ANumberThatIsNoneClearsWhatCameBefore) {
  TestRun run("prefill=entroprefill,keep=0.6");
  EXPECT_FALSE(run.ObserveMasses(2, kLastTwoMatter).accept);
  std::vector<double> rows = RowsWithMass(run.problem(), kLastTwoMatter);
  rows[rows.size() - 5] = kNaN;
  EXPECT_FALSE(run.Observe(3, rows).accept);
  EXPECT_FALSE(run.ObserveMasses(4, kLastTwoMatter).accept);
  EXPECT_EQ(run->Finish(), PruneOutcome::kFullContext);
  EXPECT_EQ(run->record().layers[1].verdict, PruneVerdict::kNonFinite);
  EXPECT_EQ(run->record().layers[2].streak, 0);
  EXPECT_EQ(run->record().reason, "no layer passed: streak_not_met at 2, 4; nonfinite at 3");
}

TEST(PruneRun, SaysWhyALayerIsInvalid) {
  TestRun run("prefill=entroprefill,keep=0.6,v=0");
  // Sinks only, then nearly nothing on documents.
  EXPECT_FALSE(run.ObserveMasses(2, {0.001, 0, 0, 0, 0}).accept);
  EXPECT_FALSE(run.ObserveMasses(3, std::vector<double>(5, 0.0011)).accept);
  std::vector<double> rows = RowsWithMass(run.problem(), std::vector<double>(5, 0.001));
  for (size_t at = 0; at < rows.size(); at += run.problem().n_tokens()) {
    rows[at] -= 0.5;
    rows[at + run.problem().n_tokens() - 1] += 0.5;  // on the question itself
  }
  EXPECT_FALSE(run.Observe(4, rows).accept);
  run->Finish();
  EXPECT_EQ(run->record().layers[0].verdict, PruneVerdict::kInvalidResidual);
  EXPECT_EQ(run->record().layers[0].groups_fallen_back, 2);
  EXPECT_EQ(run->record().layers[1].verdict, PruneVerdict::kInvalidResidual);
  EXPECT_EQ(run->record().layers[2].verdict, PruneVerdict::kInvalidDocumentMass);
  EXPECT_THAT(run->record().reason, HasSubstr("invalid_document_mass at 4"));
}

TEST(PruneRun, MissesATargetThatTheBoundProvesOutOfReach) {
  TestRun run("prefill=entroprefill,keep=0.2,v=0,eps=0.05");
  EXPECT_FALSE(run.ObserveMasses(2, std::vector<double>(5, 0.1)).accept);
  EXPECT_EQ(run->record().layers[0].verdict, PruneVerdict::kTargetNotMet);
  EXPECT_TRUE(run->record().layers[0].target_infeasible);
  EXPECT_NEAR(run->record().layers[0].saving_bound, 5, 1e-9);
  EXPECT_EQ(run->record().layers[0].saving, 0);
}

TEST(PruneRun, AFailedAuditTouchesNothingElse) {
  TestRun run("prefill=entroprefill,keep=0.6,eps_audit=0.02");
  EXPECT_FALSE(run.ObserveMasses(2, kLastTwoMatter).accept);
  EXPECT_FALSE(run.ObserveMasses(3, kLastTwoMatter).accept);
  EXPECT_EQ(run->record().layers[1].verdict, PruneVerdict::kAuditFailed);
  EXPECT_NEAR(run->record().layers[1].audit_worst_upper, 0.03, 1e-12);
  EXPECT_TRUE(run.ObserveMasses(4, {0.005, 0.005, 0.03, 0.2, 0.3}).accept);
  EXPECT_EQ(run->record().layers[2].streak, 2);
}

TEST(PruneRun, TheAuditSeesObserversThatDoNotPropose) {
  // Observers 0 and 1 only audit, and look at what the others find useless.
  const PruneProblem problem = FiveChunks(/*first_proposal=*/2);
  std::vector<double> rows = RowsWithMass(problem, kLastTwoMatter);
  const std::vector<double> others = RowsWithMass(problem, kFirstTwoMatter);
  const int64_t n = problem.n_tokens();
  for (int64_t h = 0; h < 4; ++h) {
    std::copy_n(others.begin(), 2 * n, rows.begin() + h * 4 * n);
  }
  TestRun run("prefill=entroprefill,keep=0.6,v=0,eps_audit=0.2", problem);
  EXPECT_FALSE(run.Observe(2, rows).accept);
  EXPECT_THAT(run->record().layers[0].removed, testing::UnorderedElementsAre(0, 1));
  EXPECT_THAT(run->record().layers[0].audit_mean,
              Each(testing::DoubleNear((0.5 + 0.03) / 2, 1e-12)));
  EXPECT_FALSE(run->record().audit_uninformative);
  // What only the audit sees is no reason to call the layer invalid, and never passes.
  for (int64_t j = 0; j < n; ++j) rows[j] = kNaN;
  EXPECT_FALSE(run.Observe(3, rows).accept);
  EXPECT_EQ(run->record().layers[1].verdict, PruneVerdict::kAuditFailed);
}

TEST(PruneRun, BypassesBeforeAnyLayerIsScored) {
  for (const auto& [params, chunks, outcome] :
       {std::tuple("prefill=entroprefill", std::vector<int64_t>{}, PruneOutcome::kNoCandidates),
        {"prefill=entroprefill,keep=1", {5, 5}, PruneOutcome::kZeroTarget},
        {"prefill=entroprefill,target_tokens=10", {5, 5}, PruneOutcome::kZeroTarget},
        {"prefill=entroprefill,m0=2", {5, 5}, PruneOutcome::kNothingRemovable},
        {"prefill=entroprefill", {1}, PruneOutcome::kNothingRemovable}}) {
    TestRun run(params, MakeProblem({.chunk_tokens = chunks}));
    EXPECT_THAT(run->MonitoredLayers(), IsEmpty());
    EXPECT_EQ(run->Finish(), outcome);
    EXPECT_NE(run->record().reason, "");
  }
  // No documents, no question: nothing to complain about.
  TestRun empty("prefill=entroprefill", MakeProblem({.chunk_tokens = {}, .observers = 0}));
  EXPECT_EQ(empty->Finish(), PruneOutcome::kNoCandidates);
}

TEST(PruneRun, IsToldOfABypass) {
  TestRun run("prefill=entroprefill", MakeProblem({}));
  EXPECT_FALSE(run->MonitoredLayers().empty());
  run->Bypass(PruneOutcome::kDoesNotPay, "too dear");
  EXPECT_THAT(run->MonitoredLayers(), IsEmpty());
  EXPECT_THAT(run->record().monitored_layers, IsEmpty());
  EXPECT_EQ(run->Finish(), PruneOutcome::kDoesNotPay);
  EXPECT_EQ(run->record().reason, "too dear");
  // What was known before stays.
  TestRun known("prefill=entroprefill,keep=1", MakeProblem({}));
  known->Bypass(PruneOutcome::kDoesNotPay, "too dear");
  EXPECT_EQ(known->Finish(), PruneOutcome::kZeroTarget);
  EXPECT_NE(known->record().reason, "too dear");
}

TEST(PruneRun, OneTokenChunksAndTwoThousandOfThem) {
  Rng rng(1);
  for (const auto& chunks :
       {std::vector<int64_t>(6, 1), std::vector<int64_t>(2000, 1), RandomChunks(rng, 2000, 4)}) {
    const PruneProblem problem = MakeProblem({.chunk_tokens = chunks, .observers = 2});
    TestRun run("prefill=entroprefill,keep=0.75,v=0,eps_audit=0.5", problem);
    const PruneDecision decision = run.Observe(2, RandomRows(rng, problem, 1));
    EXPECT_TRUE(decision.accept);
    EXPECT_GE(run->record().removed_tokens, run->record().target_saving);
  }
}

// Chunks of the same size and attention may trade places without another saving.
TEST(PruneRun, IsInvariantUnderTheOrderOfEqualChunks) {
  for (const std::vector<double>& masses :
       {std::vector<double>{0.1, 0.02, 0.1, 0.02, 0.1}, {0.02, 0.02, 0.1, 0.1, 0.1}}) {
    TestRun run("prefill=entroprefill,keep=0.6,v=0");
    const PruneDecision decision = run.ObserveMasses(2, masses);
    ASSERT_TRUE(decision.accept);
    for (const int32_t chunk : decision.removed) EXPECT_EQ(masses[chunk], 0.02);
  }
}

TEST(PruneRun, Float32RowsTightenTheTolerances) {
  // Two chunks of 0.25 each fill ε = 0.5 exactly, so not with a margin for rounding.
  const std::vector<double> masses = {0.125, 0.125, 0.25, 0.25, 0.2};
  TestRun exact("prefill=entroprefill,keep=0.6,v=0,eps=0.25");
  EXPECT_TRUE(exact.ObserveMasses(2, masses).accept);
  EXPECT_EQ(exact->record().row_error, 0);
  TestRun rounded("prefill=entroprefill,keep=0.6,v=0,eps=0.25", FiveChunks(), {.float_rows = true});
  EXPECT_FALSE(rounded.ObserveMasses(2, masses).accept);
  EXPECT_EQ(rounded->record().layers[0].verdict, PruneVerdict::kTargetNotMet);
  EXPECT_EQ(rounded->record().row_error, kFloatRowError);
  // ε = 0 still lets chunks of no mass go.
  TestRun none("prefill=entroprefill,keep=0.6,v=0,eps=0", FiveChunks(), {.float_rows = true});
  EXPECT_TRUE(none.ObserveMasses(2, {0, 0, 0.25, 0.25, 0.2}).accept);
}

TEST(PruneRun, AuditModesDifferInTheirSlack) {
  double slack[3] = {};
  int i = 0;
  for (const std::string mode : {"exact", "kl", "hoeffding"}) {
    TestRun run("prefill=entroprefill,keep=0.6,v=0,seed=5,m_a=400,audit=" + mode);
    run.ObserveMasses(2, kLastTwoMatter);
    EXPECT_EQ(run->record().audit_draws.size(), mode == "exact" ? 0u : 400u);
    EXPECT_EQ(run->record().audit_seed, 5u);
    slack[i++] = run->record().layers[0].audit_worst_upper;
  }
  EXPECT_LT(slack[0], slack[1]);
  EXPECT_LT(slack[1], slack[2]);
  TestRun vacuous("prefill=entroprefill,keep=0.6,v=0,m_a=10,audit=hoeffding");
  EXPECT_TRUE(vacuous->record().audit_vacuous);
  EXPECT_FALSE(vacuous.ObserveMasses(2, kLastTwoMatter).accept);
  EXPECT_TRUE(vacuous->record().layers[0].audit_vacuous);
  EXPECT_FALSE(TestRun("prefill=entroprefill")->record().audit_uninformative);
  EXPECT_TRUE(TestRun("prefill=entroprefill,eps=0.3,eps_audit=0.3")->record().audit_uninformative);
}

TEST(PruneRun, LinearProgramsRunAfterwards) {
  Rng rng(3);
  const PruneProblem problem = FiveChunks();
  const std::vector<double> rows = RandomRows(rng, problem, 2);
  TestRun single("prefill=entroprefill,keep=0.2,eps=0.3", problem);
  TestRun program("prefill=entroprefill,keep=0.2,eps=0.3,dual=lp", problem);
  TestRun full("prefill=entroprefill,keep=0.2,eps=0.3,dual=lp", problem, {.keep_tables = true});
  for (TestRun* run : {&single, &program, &full}) {
    run->Observe(2, rows);
    (*run)->Finish();
  }
  const PruneLayerAccount& by_program = program->record().layers[0];
  EXPECT_LE(by_program.saving_bound, single->record().layers[0].saving_bound);
  EXPECT_GE(by_program.saving_bound_tokens, by_program.saving);
  EXPECT_THAT(by_program.constraint_mass, IsEmpty());
  EXPECT_EQ(full->record().layers[0].constraint_mass.size(), 4u * 4u * 5u);
  EXPECT_EQ(full->record().layers[0].constraint_eps.size(), 16u);
}

TEST(PruneRun, ProposersOrderTheSameChunksDifferently) {
  const std::vector<double> even(5, 10.0 / 128);  // exact in float32, as a token's is
  TestRun recency("prefill=recency,keep=0.6,v=0");
  EXPECT_THAT(recency.ObserveMasses(2, kFirstTwoMatter).removed, IsEmpty());  // ε = .5 holds them
  TestRun recency_even("prefill=recency,keep=0.6,v=0");
  EXPECT_THAT(recency_even.ObserveMasses(2, even).removed, ElementsAre(0, 1));
  TestRun first("prefill=random,keep=0.6,v=1,seed=1");
  first.ObserveMasses(2, even);
  const PruneDecision random = first.ObserveMasses(3, even);
  EXPECT_TRUE(random.accept);  // the same order at every layer
  TestRun again("prefill=random,keep=0.6,v=0,seed=1");
  EXPECT_EQ(again.ObserveMasses(2, even).removed, random.removed);
  // Chunk 2 is one spike, chunk 3 spread: of the same mass, only concentration tells them apart.
  const auto spiked = [&](TestRun& run) {
    std::vector<double> rows = RowsWithMass(run.problem(), even);
    for (size_t at = 0; at < rows.size(); at += run.problem().n_tokens()) {
      for (int64_t j = 0; j < run.problem().n_tokens(); ++j) {
        if (run.problem().chunk_of[j] != 0) continue;
        rows[at + j] = j == run.problem().n_sinks ? even[0] : 0;
      }
    }
    return run.Observe(2, rows).removed;
  };
  TestRun entropy("prefill=entroprefill,keep=0.6,v=0");
  TestRun uniform("prefill=uniform,keep=0.6,v=0");
  TestRun mass("prefill=mass,keep=0.6,v=0");
  EXPECT_THAT(spiked(entropy), ElementsAre(1, 2));
  EXPECT_THAT(spiked(uniform), ElementsAre(1, 2));
  EXPECT_THAT(spiked(mass), ElementsAre(0, 1));
}

TEST(PruneRun, ProfilesWeighHeadsAndTheArmOverrides) {
  const std::unique_ptr<PrefillPolicy> policy =
      MakePrefillPolicy("prefill=entroprefill,theta=0.25");
  PruneProfile profile = UncalibratedProfile(
      MakePrefillPolicy("prefill=mass,uncalibrated=1,layers=3")->params, TinyModel());
  profile.name = "late";
  profile.keep = 0.6;
  profile.min_streak = 0;
  profile.layers[0].head_weights = {0, 0, 0, 1};
  const PruneProblem problem = FiveChunks();
  const auto run = policy->NewRun(problem, profile);
  EXPECT_EQ(run->record().target_saving, 20);
  EXPECT_EQ(run->record().max_set_change, 0.25);
  EXPECT_EQ(run->record().min_streak, 0);
  // Head 3 alone looks at the last two chunks.
  std::vector<double> rows = RowsWithMass(problem, kFirstTwoMatter);
  const std::vector<double> last =
      RowsWithMass(problem, std::vector<double>{0.05, 0.06, 0.1, 0.2, 0.3});
  const size_t per_head = rows.size() / 4;
  std::copy_n(last.begin(), per_head, rows.begin() + 3 * per_head);
  for (size_t j = 0; j < 3 * per_head; ++j) rows[j] *= 0.4;  // within every tolerance
  const ObservedRows observed(problem, rows);
  const PruneDecision decision = run->Observe(3, observed.observation());
  EXPECT_THAT(decision.removed, ElementsAre(0, 1));
  const PruneLayerAccount& layer = run->record().layers[0];
  EXPECT_EQ(layer.heads_outside_envelope, 3);
  EXPECT_TRUE(std::isnan(layer.head_envelope[0]));
  EXPECT_NEAR(layer.head_envelope[3], 0.11, 1e-6);
}

TEST(PruneRun, RefusesWhatDoesNotFit) {
  const auto policy = MakePrefillPolicy("prefill=entroprefill,uncalibrated=1,m0=6");
  PruneProfile profile = UncalibratedProfile(policy->params, TinyModel());
  try {
    policy->NewRun(FiveChunks(), profile);
    ADD_FAILURE() << "m0 > k was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("m0 = 6"));
  }
  profile.query_heads = 8;
  const auto other = MakePrefillPolicy("prefill=entroprefill,uncalibrated=1");
  EXPECT_THROW(other->NewRun(FiveChunks(), profile), Error);
}

}  // namespace
}  // namespace winnow
