#include "policy/prefill/stability.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/rng.h"
#include "ops/reference_prefill.h"
#include "policy/prefill/operator_norm.h"
#include "policy/prefill/tiny_norms.h"

namespace winnow {
namespace {

using reference::Normaliser;

std::vector<double> RandomVector(Rng& rng, size_t n, double scale = 1) {
  std::vector<double> x(n);
  for (double& value : x) value = scale * rng.Normal();
  return x;
}

double Length(std::span<const double> x) {
  double squares = 0;
  for (double value : x) squares += value * value;
  return std::sqrt(squares);
}

TEST(NormaliserBounds, HoldForJacobiansAndOutputs) {
  Rng rng(1);
  for (int trial = 0; trial < 200; ++trial) {
    const size_t dim = 2 + rng.Below(12);
    // From far below √ε, where the Lipschitz bound is nearly attained, to far above.
    const std::vector<double> x = RandomVector(rng, dim, std::exp(4 * rng.Normal()));
    const std::vector<double> gamma = RandomVector(rng, dim);
    const std::vector<double> beta = RandomVector(rng, dim);
    const double epsilon = std::exp(-8 * rng.Uniform());
    for (const Normaliser kind : {Normaliser::kLayer, Normaliser::kRms}) {
      const bool rms = kind == Normaliser::kRms;
      const NormaliserBounds bounds =
          ComputeNormaliserBounds(gamma, rms ? std::span<const double>() : beta, epsilon);
      const std::vector<double> jacobian = reference::NormaliserJacobian(kind, x, gamma, epsilon);
      const auto order = static_cast<int64_t>(dim);
      // Rounding of a dozen terms.
      constexpr double kSlack = 1 + 1e-12;
      EXPECT_LE(SpectralNorm({jacobian.data(), {order, order}}), bounds.lipschitz * kSlack);
      EXPECT_LE(Length(reference::Normalise(kind, x, gamma, beta, epsilon)),
                bounds.output * kSlack);
    }
  }
}

TEST(NormaliserJacobian, IsTheDerivative) {
  Rng rng(2);
  const std::vector<double> x = RandomVector(rng, 6);
  const std::vector<double> gamma = RandomVector(rng, 6);
  constexpr double kStep = 1e-6;
  for (const Normaliser kind : {Normaliser::kLayer, Normaliser::kRms}) {
    const std::vector<double> jacobian = reference::NormaliserJacobian(kind, x, gamma, 0.01);
    for (size_t j = 0; j < 6; ++j) {
      std::vector<double> up = x;
      std::vector<double> down = x;
      up[j] += kStep;
      down[j] -= kStep;
      up = reference::Normalise(kind, up, gamma, {}, 0.01);
      down = reference::Normalise(kind, down, gamma, {}, 0.01);
      for (size_t i = 0; i < 6; ++i) {
        // step² of truncation and 1e-16/step of rounding, times derivatives of some tens.
        EXPECT_NEAR((up[i] - down[i]) / (2 * kStep), jacobian[i * 6 + j], 1e-8);
      }
    }
  }
}

TEST(SpectralNorm, OfProductsOfKnownFactors) {
  Rng rng(3);
  // Two Householder reflections around a diagonal: the singular values are known.
  for (const auto& [rows, columns] : {std::pair(5, 9), std::pair(9, 5), std::pair(1, 4)}) {
    const std::vector<double> u = RandomVector(rng, rows);
    const std::vector<double> v = RandomVector(rng, columns);
    const auto reflect = [](std::span<const double> n, int i, int j) {
      return (i == j ? 1.0 : 0.0) - 2 * n[i] * n[j] / (Length(n) * Length(n));
    };
    std::vector<double> w(rows * columns, 0.0);
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < columns; ++j) {
        for (int k = 0; k < std::min(rows, columns); ++k) {
          w[i * columns + j] += reflect(u, i, k) * (3.0 - 0.5 * k) * reflect(v, k, j);
        }
      }
    }
    EXPECT_NEAR(SpectralNorm({w.data(), {rows, columns}}), 3, 1e-12);
  }
  std::vector<double> broken = {1, std::numeric_limits<double>::quiet_NaN()};
  EXPECT_TRUE(std::isnan(SpectralNorm({broken.data(), {1, 2}})));
}

std::vector<double> Softmax(std::span<const double> z) {
  const double max = *std::max_element(z.begin(), z.end());
  std::vector<double> p;
  for (double value : z) p.push_back(std::exp(value - max));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= sum;
  return p;
}

TEST(SoftmaxFactor, OneHoldsAndIsAttained) {
  Rng rng(4);
  double largest = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    const size_t n = 2 + rng.Below(6);
    const std::vector<double> z = RandomVector(rng, n, 2);
    std::vector<double> moved = z;
    const double step = std::exp(-6 * rng.Uniform());
    for (double& value : moved) value += rng.Below(2) == 0 ? step : -step;
    const std::vector<double> p = Softmax(z);
    const std::vector<double> q = Softmax(moved);
    double distance = 0;
    for (size_t i = 0; i < n; ++i) distance += std::abs(p[i] - q[i]);
    largest = std::max(largest, distance / step);
  }
  EXPECT_LE(largest, kSharpSoftmaxFactor + 1e-12);
  EXPECT_GT(largest, 0.95);
}

reference::TinyModel RandomModel(Rng& rng, Normaliser norm) {
  reference::TinyModel model;
  model.hidden = 6;
  model.query_heads = 4;
  model.kv_heads = 2;
  model.head_dim = 4;
  model.feed_forward = 5;
  model.norm = norm;
  model.activation = norm == Normaliser::kRms ? reference::TinyActivation::kRelu
                                              : reference::TinyActivation::kTanh;
  model.epsilon = std::exp(-5 * rng.Uniform());
  const double scale = 0.05 + 0.4 * rng.Uniform();
  for (int l = 0; l < 4; ++l) {
    const auto random = [&](size_t n) { return RandomVector(rng, n, scale); };
    const auto gamma = [&] {
      std::vector<double> g = RandomVector(rng, 6, 0.2);
      for (double& value : g) value += 0.6;
      return g;
    };
    model.blocks.push_back({.wq = random(96),
                            .bq = random(16),
                            .wk = random(48),
                            .bk = random(8),
                            .wv = random(48),
                            .bv = random(8),
                            .output = random(96),
                            .gamma1 = gamma(),
                            .beta1 = random(6),
                            .gamma2 = gamma(),
                            .beta2 = random(6),
                            .w1 = random(30),
                            .b1 = random(5),
                            .w2 = random(30),
                            .b2 = random(6)});
  }
  return model;
}

// One random model, prompt, removal and layer, with the theorem's constants.
struct Example {
  reference::TinyModel model;
  std::vector<int64_t> retained, removed;
  size_t accepted = 0;
  reference::TinyPruning run;
  std::vector<std::vector<double>> eta;  // [deep layers][H]

  Example(Rng& rng, Normaliser norm) : model(RandomModel(rng, norm)) {
    constexpr int64_t kTokens = 12;
    std::vector<int64_t> positions(kTokens);
    std::iota(positions.begin(), positions.end(), 0);
    for (int64_t t = 0; t < kTokens; ++t) {
      const bool may_go = t >= 2 && t < kTokens - 2;
      (may_go && rng.Below(2) == 0 ? removed : retained).push_back(t);
    }
    accepted = rng.Below(4);
    run = PruneTiny(model, RandomVector(rng, kTokens * 6, 2), positions, retained, accepted);
    for (size_t l = accepted; l < model.blocks.size(); ++l) {
      eta.push_back(reference::LargestRemovedMass(
          {run.full.attention[l].data(), {4, kTokens, kTokens}}, retained, removed));
    }
  }

  std::vector<double> Bounds(double softmax_factor) const {
    std::vector<double> defects, constants;
    for (size_t l = accepted; l < model.blocks.size(); ++l) {
      const BlockNorms norms = TinyBlockNorms(model, static_cast<int64_t>(l));
      const BlockConstants block = ComputeBlockConstants(norms, softmax_factor);
      defects.push_back(std::log(DeletionDefect(norms, block.mlp, eta[l - accepted])));
      constants.push_back(std::log(block.block));
    }
    std::vector<double> deltas = PropagateDefects(defects, constants);
    for (double& delta : deltas) delta = std::exp(delta);
    return deltas;
  }
};

TEST(Theorem62, BoundsTheDifferenceOfTheTrajectories) {
  Rng rng(5);
  int n_close = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const Example example(rng, trial % 2 == 0 ? Normaliser::kRms : Normaliser::kLayer);
    const std::vector<double> paper = example.Bounds(kPaperSoftmaxFactor);
    const std::vector<double> sharp = example.Bounds(kSharpSoftmaxFactor);
    ASSERT_EQ(paper.size(), example.run.differences.size());
    for (size_t l = 0; l < paper.size(); ++l) {
      // Differences near zero are rounding of states of size ten.
      EXPECT_LE(example.run.differences[l], sharp[l] + 1e-13);
      EXPECT_LE(sharp[l], paper[l]);
    }
    // The first block's bound has no product in it: two digits above the truth, not twenty.
    if (!example.removed.empty() && paper[1] < 100 * example.run.differences[1]) ++n_close;
  }
  EXPECT_GT(n_close, 10);
}

TEST(SupportTransfer, BoundsEveryRowsMassAndTheTheoremStillHolds) {
  Rng rng(6);
  for (int trial = 0; trial < 40; ++trial) {
    const Example example(rng, Normaliser::kRms);
    const int64_t n_tokens = 12;
    std::vector<double> mu(n_tokens, 0.0);
    const double floor = 0.01;
    for (double& value : mu) value = floor + rng.Uniform();
    const double sum = std::accumulate(mu.begin(), mu.end(), 0.0);
    for (double& value : mu) value /= sum;
    std::vector<uint8_t> documents(n_tokens, 0);
    for (int64_t t = 2; t < n_tokens - 2; ++t) documents[t] = 1;
    double pooled = 0;
    for (int64_t j : example.removed) pooled += mu[j];
    for (size_t l = 0; l < example.eta.size(); ++l) {
      const std::vector<double>& attention = example.run.full.attention[example.accepted + l];
      for (int64_t h = 0; h < 4; ++h) {
        const TensorView<const double, 2> rows(attention.data() + h * n_tokens * n_tokens,
                                               {n_tokens, n_tokens});
        const double ratio = LargestDensityRatio(rows, mu, documents);
        // At the largest ratio rounding alone is left, one ulp a token.
        EXPECT_LE(DensityRatioExcess(rows, mu, documents, ratio), 1e-14);
        for (const double gamma : {0.0, 0.3 * ratio, ratio}) {
          const double sigma = DensityRatioExcess(rows, mu, documents, gamma);
          EXPECT_LE(example.eta[l][h], TransferredMass(gamma, pooled, sigma) + 1e-14);
        }
      }
    }
  }
}

TEST(SupportTransfer, AProbeWithoutMassWhereARowLooksHasNoRatio) {
  const std::vector<double> row = {0.5, 0.5, 0.0};
  const std::vector<uint8_t> all(3, 1);
  EXPECT_EQ(LargestDensityRatio({row.data(), {1, 3}}, std::vector<double>{1, 0, 0}, all),
            std::numeric_limits<double>::infinity());
  EXPECT_EQ(LargestDensityRatio({row.data(), {1, 3}}, std::vector<double>{0.25, 0.75, 0}, all), 2);
}

TEST(DecisionMargin, AndItsCertificate) {
  EXPECT_EQ(DecisionMargin(std::vector<double>{1, 4, 3.5}), 0.5);
  EXPECT_EQ(DecisionMargin(std::vector<double>{2, 2}), 0);
  EXPECT_TRUE(std::isnan(
      DecisionMargin(std::vector<double>{1, std::numeric_limits<double>::quiet_NaN(), 0})));
  EXPECT_TRUE(FirstTokenCertified(0.5, 0.2));
  EXPECT_FALSE(FirstTokenCertified(0.5, 0.25));  // the margin must exceed it
  EXPECT_FALSE(FirstTokenCertified(0, 0));
}

TEST(PropagateDefects, AreSumsOfProductsFarBeyondADouble) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto log = [](std::vector<double> x) {
    for (double& value : x) value = std::log(value);
    return x;
  };
  const std::vector<double> deltas = PropagateDefects(log({0, 2, 1}), log({9, 5, 3}));
  EXPECT_EQ(deltas[1], -kInfinity);  // nothing was moved
  EXPECT_NEAR(std::exp(deltas[2]), 2, 1e-14);
  EXPECT_NEAR(std::exp(deltas[3]), 7, 1e-14);
  const std::vector<double> huge(40, 50.0);
  EXPECT_NEAR(PropagateDefects(huge, huge).back(), 40 * 50.0, 1e-9);  // the first e by 39 K
  EXPECT_EQ(PropagateDefects(log({0}), std::vector<double>{kInfinity}).back(), -kInfinity);
}

TEST(OperatorNormBounds, EncloseTheSpectralNorm) {
  Rng rng(7);
  for (const auto& [rows, columns] : {std::pair(40, 60), std::pair(60, 40), std::pair(1, 30)}) {
    const std::vector<double> w = RandomVector(rng, rows * columns);
    const std::vector<float> narrow(w.begin(), w.end());
    const std::vector<double> wide(narrow.begin(), narrow.end());
    const double norm = SpectralNorm({wide.data(), {rows, columns}});
    const NormInterval bounds = OperatorNormBounds({narrow.data(), {rows, columns}}, 1, 1e-9);
    EXPECT_LE(bounds.low, norm * (1 + 1e-12));
    EXPECT_GE(bounds.low, 0.98 * norm);  // close singular values: not all of the iterations' gain
    EXPECT_GE(bounds.high, norm * (1 - 1e-12));
    EXPECT_LE(bounds.high, 1.07 * norm);  // (δ·√(π/2n))^(-1/400)
  }
  const std::vector<float> zero(12, 0.0f);
  EXPECT_EQ(OperatorNormBounds({zero.data(), {3, 4}}, 1, 1e-9).high, 0);
}

}  // namespace
}  // namespace winnow
