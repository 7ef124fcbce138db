#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ops/reference_prefill.h"
#include "policy/prefill/statement.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Proposition 6.1: attention of shallow layers gives no unconditional guarantee of the output. So
// these words are part of what is promised, and whoever changes them changes the promise.
TEST(AuditStatement, APassedAuditSpeaksOfAttentionAndNeverOfRelevance) {
  EXPECT_EQ(AuditStatement(AuditVerdict::kPassed),
            "audit passed: at this layer the observers paid little attention to what was removed; "
            "that says nothing of its relevance to the answer");
}

TEST(AuditStatement, NoOutcomeClaimsThatWhatWasRemovedIsIrrelevant) {
  for (const AuditVerdict verdict :
       {AuditVerdict::kPassed, AuditVerdict::kFailed, AuditVerdict::kUninformative,
        AuditVerdict::kVacuous, AuditVerdict::kNotRun}) {
    const std::string text(AuditStatement(verdict));
    EXPECT_THAT(text, Not(::testing::IsEmpty()));
    for (const char* claim : {"irrelevant", "safe", "guarantee", "certif", "preserv", "lossless"}) {
      EXPECT_THAT(text, Not(HasSubstr(claim)));
    }
    // Relevance is named only to say that nothing is said of it.
    if (text.find("relevance") != std::string::npos) {
      EXPECT_THAT(text, ::testing::AnyOf(HasSubstr("says nothing of its relevance"),
                                         HasSubstr("neither says anything of relevance")));
    }
  }
}

// The construction of its proof: a value coordinate that only the second block reads, marks that
// queries ask for, and a first block whose output is zero.
TEST(Proposition61, ShallowAttentionTendsToZeroWhileTheOutputErrorStays) {
  constexpr int64_t kHidden = 4;  // (constant, evidence's mark, value, query's mark)
  const auto model = [&](double shallow_logit) {
    reference::TinyModel tiny;
    tiny.hidden = kHidden;
    tiny.query_heads = tiny.kv_heads = 1;
    tiny.head_dim = 4;
    tiny.feed_forward = 1;
    tiny.epsilon = 1e-6;
    tiny.rope_base = 1e30;  // the pair (1, 3) does not turn
    for (int l = 0; l < 2; ++l) {
      reference::TinyBlock block;
      block.wq.assign(16, 0.0);
      block.wk.assign(16, 0.0);
      block.wv.assign(16, 0.0);
      block.output.assign(16, 0.0);
      block.bq = block.bk = block.bv = block.b2 = block.beta1 = block.beta2 =
          std::vector<double>(4, 0.0);
      block.gamma1 = block.gamma2 = std::vector<double>(4, 1.0);
      block.w1.assign(4, 0.0);
      block.w2.assign(4, 0.0);
      block.b1 = {0.0};
      // The query's mark asks for the evidence's: away from it in the shallow block, to it in the
      // deep one, which alone reads values.
      block.wq[1 * 4 + 3] = 1;
      block.wk[1 * 4 + 1] = l == 0 ? shallow_logit : 60;
      if (l == 1) block.wv[2 * 4 + 2] = block.output[2 * 4 + 2] = 1;
      tiny.blocks.push_back(block);
    }
    return tiny;
  };
  const std::vector<int64_t> positions = {0, 1, 2};
  const std::vector<int64_t> retained = {0, 2};
  const std::vector<int64_t> removed = {1};
  for (const double shallow_logit : {-2.0, -10.0, -60.0}) {
    double errors[2];
    double shallow_mass[2];
    for (int sign = 0; sign < 2; ++sign) {
      const double value = sign == 0 ? 1 : -1;
      const std::vector<double> x = {1, 0, 0, 0, 0, 1, value, 0, 0, 0, 0, 1};
      const reference::TinyPruning run = PruneTiny(model(shallow_logit), x, positions, retained, 1);
      shallow_mass[sign] = reference::LargestRemovedMass({run.full.attention[0].data(), {1, 3, 3}},
                                                         retained, removed)[0];
      errors[sign] = run.differences.back();
    }
    EXPECT_EQ(shallow_mass[0], shallow_mass[1]);
    // Normed marks are 2 for the query and √2 for the evidence, whose value coordinate has the same
    // size; scaled by ½ the shallow logit is √2·shallow_logit, against two of 0. ε moves it by less
    // than 1e-4.
    EXPECT_LE(shallow_mass[0], 1.01 * std::exp(std::sqrt(2.0) * shallow_logit) / 2);
    EXPECT_GE(std::max(errors[0], errors[1]), 1.4);  // V = √2, γ below e^-80
  }
}

}  // namespace
}  // namespace winnow
