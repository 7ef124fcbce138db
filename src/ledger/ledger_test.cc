#include "ledger/ledger.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

// A bin is a tenth of a power of ten: its upper edge is at most 26 % above what is in it.
TEST(StatementAccount, TheQuantileOfWidthsIsNeverTooSmall) {
  StatementAccount statements;
  EXPECT_EQ(statements.WidthQuantile(0.95), 0);
  for (int i = 1; i <= 1000; ++i) statements.AddInterval(0.1, 0.1 + i * 1e-4);
  for (const double share : {0.1, 0.5, 0.95}) {
    EXPECT_GE(statements.WidthQuantile(share), share * 0.1 - 1e-12);
    EXPECT_LE(statements.WidthQuantile(share), 1.26 * share * 0.1);
  }
  EXPECT_NEAR(statements.WidthQuantile(1), 0.1, 1e-12);
  StatementAccount exact;
  exact.AddInterval(0, 0);
  exact.AddInterval(0, 1);
  EXPECT_LE(exact.WidthQuantile(0.5), 1e-6);
  EXPECT_EQ(exact.WidthQuantile(1), 1);
  exact += statements;
  EXPECT_EQ(exact.intervals, 1002);
  EXPECT_EQ(exact.width_max, 1);
}

// Above its last edge, 10^3, only the largest is known.
TEST(OutputErrorAccount, ItsQuantileHoldsBeyondTheBins) {
  OutputErrorAccount errors;
  EXPECT_EQ(errors.RelativeQuantile(0.95), 0);
  errors.AddBound(0, 0);
  errors.AddBound(3, 50);
  errors.AddBound(1, 1e7);
  EXPECT_LE(errors.RelativeQuantile(0.3), 1e-6);
  EXPECT_GE(errors.RelativeQuantile(0.6), 50);
  EXPECT_LE(errors.RelativeQuantile(0.6), 1.26 * 50);
  EXPECT_EQ(errors.RelativeQuantile(1), 1e7);
  errors += errors;
  EXPECT_EQ(errors.bounds, 6);
  EXPECT_EQ(errors.absolute, 8);
}

AttentionAccount OneStep(double hi) {
  AttentionAccount account{.tokens_read = 10, .tokens_resident = 100, .layers_sparse = 1};
  account.kv_heads = 2;
  account.heads.resize(4);  // the first layer is dense
  account.heads[3] = {.steps = 1, .tokens_read = 10, .intervals = 1, .hi = hi, .hi_max = hi};
  account.statements.AddInterval(0, hi);
  account.statements.by_kind[1] = 1;
  account.statements.vacuous[1] = hi >= 0.5 ? 1 : 0;
  account.fallback_certificate = hi >= 0.5 ? 1 : 0;
  account.output_errors.AddBound(2 * hi, hi);
  account.output_errors.by_kind[1] = 1;
  account.output_errors.vacuous[1] = hi >= 0.5 ? 1 : 0;
  account.heads[3].error_bounds = 1;
  account.heads[3].error = account.heads[3].error_max = hi;
  account.widened_error = 1;
  return account;
}

TEST(PhaseLedger, SummarisesUnlessAllIsAskedFor) {
  PhaseLedger ledger;
  for (const double hi : {0.25, 0.75}) {
    const AttentionAccount step = OneStep(hi);
    ledger.MakeRoomFor(step);
    ledger.AddStep(step);
  }
  const nlohmann::ordered_json summary = ToJson(ledger);
  EXPECT_EQ(summary["tokens"], 2);
  const nlohmann::ordered_json& sparse = summary["sparse"];
  EXPECT_EQ(sparse["statements"]["deterministic"]["count"], 2);
  EXPECT_EQ(sparse["statements"]["deterministic"]["vacuous"], 1);
  EXPECT_FALSE(sparse["statements"].contains("estimate"));
  EXPECT_EQ(sparse["unread_bound"]["hi"], 1.0);
  EXPECT_EQ(sparse["unread_bound"]["hi_max"], 0.75);
  EXPECT_EQ(sparse["unread_bound"]["width_mean"], 0.5);
  EXPECT_EQ(sparse["fallback_certificate"], 1);
  EXPECT_EQ(sparse["widened_error"], 2);
  const nlohmann::ordered_json& output = sparse["output_bound"];
  EXPECT_EQ(output["heads"], 2);
  EXPECT_EQ(output["statements"]["deterministic"]["vacuous"], 1);
  EXPECT_EQ(output["absolute_mean"], 1.0);
  EXPECT_EQ(output["absolute_max"], 1.5);
  EXPECT_EQ(output["relative_mean"], 0.5);
  EXPECT_EQ(output["relative_p95"], 0.75);
  EXPECT_EQ(sparse["mass_kind"], "unknown");
  EXPECT_FALSE(sparse.contains("heads") || sparse.contains("steps"));

  const nlohmann::ordered_json full = ToJson(ledger, LedgerDetail::kFull);
  const nlohmann::ordered_json& heads = full["sparse"]["heads"];
  ASSERT_EQ(heads.size(), 1U);
  EXPECT_EQ(heads[0]["layer"], 2);
  EXPECT_EQ(heads[0]["kv_head"], 1);
  EXPECT_EQ(heads[0]["steps"], 2);
  EXPECT_EQ(heads[0]["hi"], 1.0);
  EXPECT_EQ(heads[0]["error_heads"], 2);
  EXPECT_EQ(heads[0]["error"], 1.0);
  EXPECT_EQ(heads[0]["error_max"], 0.75);
  ASSERT_EQ(full["sparse"]["steps"].size(), 2U);
  EXPECT_EQ(full["sparse"]["steps"][1]["hi"], 0.75);
  EXPECT_EQ(full["sparse"]["steps"][1]["fallbacks"], 2);
}

TEST(PhaseLedger, AnEstimateIsNoBound) {
  PhaseLedger ledger;
  AttentionAccount step{
      .layers_sparse = 1, .mass_exact = 0.9, .mass_dropped = 0.1, .mass_heads = 1};
  step.statements.by_kind[4] = 1;
  ledger.AddStep(step);
  const nlohmann::ordered_json json = ToJson(ledger);
  EXPECT_TRUE(json["sparse"]["unread_bound"].is_null());
  EXPECT_TRUE(json["sparse"]["output_bound"].is_null());
  EXPECT_EQ(json["sparse"]["statements"]["estimate"]["count"], 1);
  EXPECT_EQ(json["sparse"]["mass_kind"], "estimate");
  EXPECT_FALSE(ToJson(PhaseLedger{}).contains("sparse"));
}

}  // namespace
}  // namespace winnow
