#include "policy/certify/statement.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

TEST(Statement, IsDescribedByKindDeltaAndStanding) {
  EXPECT_EQ(Describe({StatementKind::kExact}), "exact");
  EXPECT_EQ(Describe({StatementKind::kDeterministic, Standing::kVacuous}),
            "deterministic, vacuous");
  EXPECT_EQ(Describe({StatementKind::kStatistical, Standing::kInformative, 0.05}),
            "statistical(0.05)");
  EXPECT_EQ(Describe({StatementKind::kAsymptotic, Standing::kVacuous, 1e-3}),
            "asymptotic(0.001), vacuous");
  EXPECT_EQ(Describe({StatementKind::kEstimate, Standing::kNotFinite}), "estimate, not finite");
}

TEST(Statement, OnlyFiniteBoundsAreBounds) {
  EXPECT_TRUE((Statement{StatementKind::kExact}.IsBound()));
  EXPECT_TRUE((Statement{StatementKind::kDeterministic, Standing::kVacuous}.IsBound()));
  EXPECT_TRUE((Statement{StatementKind::kStatistical}.IsBound()));
  EXPECT_FALSE((Statement{StatementKind::kAsymptotic}.IsBound()));
  EXPECT_FALSE((Statement{StatementKind::kEstimate}.IsBound()));
  EXPECT_FALSE((Statement{StatementKind::kExact, Standing::kNotFinite}.IsBound()));
}

TEST(Statement, BothIsTheWeaker) {
  const Statement both = Both({StatementKind::kStatistical, Standing::kInformative, 0.04},
                              {StatementKind::kStatistical, Standing::kVacuous, 0.01});
  EXPECT_EQ(both.kind, StatementKind::kStatistical);
  EXPECT_EQ(both.standing, Standing::kVacuous);
  EXPECT_DOUBLE_EQ(both.delta, 0.05);
  EXPECT_EQ(Both({StatementKind::kExact}, {StatementKind::kEstimate}).kind,
            StatementKind::kEstimate);
  EXPECT_EQ(Both({StatementKind::kStatistical, Standing::kInformative, 0.7},
                 {StatementKind::kStatistical, Standing::kInformative, 0.7})
                .delta,
            1);
}

}  // namespace
}  // namespace winnow
