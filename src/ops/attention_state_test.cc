#include "ops/attention_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/rng.h"
#include "core/tensor_view.h"
#include "ops/reference.h"

namespace winnow {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct State {
  std::vector<float> out;
  float log_mass = kEmptyLogMass;
};

State Merged(State a, const State& b) {
  MergeAttentionState(a.out.data(), &a.log_mass, b.out.data(), b.log_mass,
                      static_cast<int64_t>(a.out.size()));
  return a;
}

TEST(AttentionState, IdentityOnEitherSideChangesNothing) {
  const State state{{0.25f, -3.0f, 1e-20f}, -1234.5f};
  const State identity{{0.0f, 0.0f, 0.0f}};
  for (const State& merged : {Merged(state, identity), Merged(identity, state)}) {
    EXPECT_EQ(merged.out, state.out);
    EXPECT_EQ(merged.log_mass, state.log_mass);
  }
  const State empty = Merged(identity, identity);
  EXPECT_EQ(empty.out, identity.out);
  EXPECT_EQ(empty.log_mass, kEmptyLogMass);
}

TEST(AttentionState, NanInEitherMassReachesAll) {
  for (float other : {kNaN, kEmptyLogMass, 0.0f, 50.0f}) {
    const State nan{{1.0f, 2.0f}, kNaN};
    const State state{{3.0f, 4.0f}, other};
    for (const State& merged : {Merged(nan, state), Merged(state, nan)}) {
      EXPECT_TRUE(std::isnan(merged.log_mass)) << other;
      for (float value : merged.out) EXPECT_TRUE(std::isnan(value)) << other;
    }
  }
}

TEST(AttentionState, HugeMassesDoNotOverflow) {
  const State a{{1.0f}, 1e4f};
  const State b{{3.0f}, 1e4f};
  const State c{{7.0f}, -1e4f};
  EXPECT_FLOAT_EQ(Merged(a, b).out[0], 2.0f);
  EXPECT_FLOAT_EQ(Merged(a, b).log_mass, 1e4f + std::log(2.0f));
  EXPECT_EQ(Merged(a, c).out[0], 1.0f);
  EXPECT_EQ(Merged(a, c).log_mass, 1e4f);
}

// Splits of the tokens, merged in order, give the attention over all of them.
TEST(AttentionState, SplitsMergeToTheWhole) {
  constexpr int64_t kTokens = 60;
  constexpr int64_t kDim = 5;
  Rng rng(3);
  std::vector<double> q(kDim);
  std::vector<double> k(kTokens * kDim);
  std::vector<double> v(kTokens * kDim);
  for (auto* values : {&q, &k, &v}) {
    for (double& value : *values) value = rng.Normal();
  }
  const auto attend = [&](int64_t begin, int64_t end) {
    std::vector<double> out(kDim);
    const double log_mass =
        reference::Attention(q, {k.data() + begin * kDim, {end - begin, kDim}},
                             {v.data() + begin * kDim, {end - begin, kDim}}, 1.0, out);
    return State{{out.begin(), out.end()}, static_cast<float>(log_mass)};
  };
  const State whole = attend(0, kTokens);
  State merged = attend(0, 0);
  for (int64_t begin = 0; begin < kTokens; begin += 7) {
    merged = Merged(merged, attend(begin, std::min(begin + 7, kTokens)));
  }
  // Nine merges; each rounds the weights (exp, sum, division: 4 u), the products and the sum (2 u),
  // and the log mass (u times its size, below 8, and 3 u), which the next weights inherit. |v| < 4.
  constexpr float kUnit = 0x1p-24f;
  constexpr float kRelative = 9 * (4 + 2 + 8 + 3) * kUnit;
  for (int64_t d = 0; d < kDim; ++d) EXPECT_NEAR(merged.out[d], whole.out[d], 4 * kRelative);
  EXPECT_NEAR(merged.log_mass, whole.log_mass, kRelative);
}

}  // namespace
}  // namespace winnow
