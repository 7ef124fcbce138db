// Reads in which only some tokens of the pages count, or a solver weighs them: against plain double
// versions on the same pages.
#include "attention/candidate_read.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "attention/sparse_decode.h"
#include "ops/paged_layer_test.h"
#include "policy/arm.h"
#include "policy/select/routing.h"
#include "policy/solver/exponentiated_gradient.h"
#include "policy/solver/frank_wolfe.h"
#include "policy/solver/gaps.h"

namespace winnow {
namespace {

using ::winnow::testing::LayerShape;
using ::winnow::testing::PagedLayer;

// Heads 9/3 of 64, as the default model has them, and 32/8 of 128; 20 full pages and five tokens.
// With one recent token and no generated ones the middle is pages 1 to 19.
constexpr int64_t kTokens = 20 * 32 + 5;
constexpr int64_t kMiddleBegin = 1;
constexpr int64_t kMiddleEnd = 20;
const std::string kRest = ",recent=1,dense_layers=0";
const std::string kAll = "select=all,dense_layers=0";

struct Attended {
  std::vector<float> out;  // [H, D]
  AttentionAccount account;
  StageSeconds seconds;
};

struct Case {
  LayerShape shape;
  DType dtype;
};
const std::vector<Case> kCases = {{{3, 3, 64, 32, kTokens}, DType::kF32},
                                  {{3, 3, 64, 32, kTokens}, DType::kF16},
                                  {{8, 4, 128, 32, kTokens}, DType::kF16},
                                  {{2, 1, 64, 32, kTokens}, DType::kQ8_0}};

class CandidateReadTest : public ::testing::Test {
 protected:
  static std::unique_ptr<PagedLayer> NewLayer(const Case& c, uint64_t seed) {
    return std::make_unique<PagedLayer>(c.shape,
                                        PlaneSet{Plane::kKeyMean, Plane::kValueMean,
                                                 Plane::kValueSpread, Plane::kKeys8, Plane::kKeys4},
                                        c.dtype, seed);
  }
  std::unique_ptr<PagedLayer> RandomLayer(const Case& c, uint64_t seed) {
    auto layer = NewLayer(c, seed);
    layer->Store(threads_);
    return layer;
  }

  static Attended Attend(ThreadPool& threads, const std::string& arm, const PagedLayer& layer) {
    const std::unique_ptr<DecodePolicy> policy = MakeDecodePolicy(arm);
    Attended attended;
    attended.out.assign(static_cast<size_t>(layer.query_heads()) * layer.shape().dim,
                        std::numeric_limits<float>::quiet_NaN());
    const SparseSlot slot{.query = {layer.queries(), layer.View(), layer.SuperPages()},
                          .out = attended.out.data(),
                          .account = &attended.account};
    SparseDecode(&threads).Attend(*policy, 5,
                                  {.query_heads = layer.query_heads(), .scale = layer.scale()},
                                  {&slot, 1}, &attended.seconds);
    return attended;
  }
  Attended Attend(const std::string& arm, const PagedLayer& layer) {
    return Attend(threads_, arm, layer);
  }

  ThreadPool threads_{2};
};

// Everything of one KV head in double.
struct Head {
  Head(const PagedLayer& layer, int kv_head)
      : shape(layer.shape()),
        rows(layer.Stored(kv_head * layer.shape().group)),
        scores(shape.group) {
    for (int r = 0; r < shape.group; ++r) {
      const std::span<const float> q = layer.q(kv_head * shape.group + r);
      queries.emplace_back(q.begin(), q.end());
      for (int64_t t = 0; t < shape.n_tokens; ++t) {
        double score = 0;
        for (int c = 0; c < shape.dim; ++c) score += queries[r][c] * rows.keys[t * shape.dim + c];
        scores[r].push_back(score * layer.scale());
      }
    }
  }

  // The sum over the heads of the softmax over `items` of what `of(r, item)` says.
  template <class Of>
  std::vector<double> Pooled(const std::vector<int64_t>& items, Of of) const {
    std::vector<double> pooled(items.size());
    for (int r = 0; r < shape.group; ++r) {
      double max = -1e300;
      for (int64_t item : items) max = std::max(max, of(r, item));
      double sum = 0;
      for (int64_t item : items) sum += std::exp(of(r, item) - max);
      for (size_t i = 0; i < items.size(); ++i) pooled[i] += std::exp(of(r, items[i]) - max) / sum;
    }
    return pooled;
  }

  // The P pages of the middle with the best mean keys, and K_c of their tokens by exact keys.
  void Route(double scale, int64_t n_pages, int64_t n_candidates) {
    std::vector<int64_t> full(shape.n_tokens / shape.slots);
    std::iota(full.begin(), full.end(), 0);
    const std::vector<double> pooled = Pooled(full, [&](int r, int64_t page) {
      double score = 0;
      for (int64_t t = page * shape.slots; t < (page + 1) * shape.slots; ++t) {
        for (int c = 0; c < shape.dim; ++c) {
          score += queries[r][c] * rows.keys[t * shape.dim + c] / shape.slots;
        }
      }
      return scale * score;
    });
    const std::span<const double> middle =
        std::span(pooled).subspan(kMiddleBegin, kMiddleEnd - kMiddleBegin);
    std::vector<int64_t> tokens;
    for (int64_t i : TopIndices(middle, n_pages)) {
      pages.push_back(kMiddleBegin + i);
      for (int64_t t = 0; t < shape.slots; ++t) tokens.push_back(pages.back() * shape.slots + t);
    }
    ChooseAmong(tokens, PooledScores(tokens), n_candidates);
  }

  // Of all middle tokens the best, by shares of all tokens of full pages.
  void RouteExactly(int64_t n_candidates) {
    std::vector<int64_t> tokens(kMiddleEnd * shape.slots);
    std::iota(tokens.begin(), tokens.end(), 0);
    std::vector<double> pooled = PooledScores(tokens);
    tokens.erase(tokens.begin(), tokens.begin() + kMiddleBegin * shape.slots);
    pooled.erase(pooled.begin(), pooled.begin() + kMiddleBegin * shape.slots);
    ChooseAmong(tokens, pooled, n_candidates);
    for (int64_t t : candidates) {
      const int64_t page = t / shape.slots;
      const bool middle = page >= kMiddleBegin && page < kMiddleEnd;
      if (middle && (pages.empty() || pages.back() != page)) pages.push_back(page);
    }
  }

  std::vector<double> PooledScores(const std::vector<int64_t>& tokens) const {
    return Pooled(tokens, [&](int r, int64_t t) { return scores[r][t]; });
  }

  void ChooseAmong(const std::vector<int64_t>& tokens, const std::vector<double>& pooled,
                   int64_t n_candidates) {
    for (int64_t t = 0; t < kMiddleBegin * shape.slots; ++t) candidates.push_back(t);
    for (int64_t i : TopIndices(pooled, n_candidates)) candidates.push_back(tokens[i]);
    for (int64_t t = kMiddleEnd * shape.slots; t < shape.n_tokens; ++t) candidates.push_back(t);
  }

  struct Output {
    std::vector<double> out;  // [D]
    double candidates = 0;    // masses
    double left_out = 0;
    double all = 0;
  };
  // Attention over the candidates, and over what they leave of the pages with the mean values.
  Output Attention(int r, bool with_left_out) const {
    Output result{std::vector<double>(shape.dim)};
    const auto add = [&](double mass, int64_t t, double part) {
      for (int c = 0; c < shape.dim; ++c) {
        result.out[c] += mass * part * rows.values[t * shape.dim + c];
      }
    };
    for (int64_t t = 0; t < shape.n_tokens; ++t) result.all += std::exp(scores[r][t]);
    for (int64_t t : candidates) {
      result.candidates += std::exp(scores[r][t]);
      add(std::exp(scores[r][t]), t, 1);
    }
    for (int64_t page : pages) {
      double mass = 0;
      for (int64_t t = page * shape.slots; t < (page + 1) * shape.slots; ++t) {
        if (!std::binary_search(candidates.begin(), candidates.end(), t)) {
          mass += std::exp(scores[r][t]);
        }
      }
      result.left_out += mass;
      for (int64_t t = page * shape.slots; with_left_out && t < (page + 1) * shape.slots; ++t) {
        add(mass, t, 1.0 / shape.slots);
      }
    }
    for (double& x : result.out) {
      x /= result.candidates + (with_left_out ? result.left_out : 0);
    }
    return result;
  }

  LayerShape shape;
  PagedLayer::Rows rows;
  std::vector<std::vector<double>> queries;  // [R][D]
  std::vector<std::vector<double>> scores;   // [R][T]
  std::vector<int64_t> pages;                // routed
  std::vector<int64_t> candidates;           // those always read included
};

// A score of D products is off by D·2^-24 of their sizes, at most 128·6e-8·128·0.8/√128 = 7e-5
// (|q·k| averages 0.64 a channel); weights by as much, and the output by that of the weighted |v|,
// at most about 4.
constexpr double kTolerance = 3e-4;

TEST_F(CandidateReadTest, VashistaReadsTheBestTokensOfTheBestPages) {
  for (const Case& c : kCases) {
    const auto layer = RandomLayer(c, 1);
    for (const auto& [n_pages, n_candidates] :
         {std::pair<int64_t, int64_t>{1, 1}, {1, 31}, {4, 5}, {6, 64}, {19, 100}}) {
      const Attended attended =
          Attend(fmt::format("select=vashista,P={},Kc={}{}", n_pages, n_candidates, kRest), *layer);
      AttentionAccount expected;
      for (int kv_head = 0; kv_head < c.shape.kv_heads; ++kv_head) {
        Head head(*layer, kv_head);
        head.Route(layer->scale(), n_pages, n_candidates);
        for (int r = 0; r < c.shape.group; ++r) {
          const Head::Output output = head.Attention(r, true);
          for (int i = 0; i < c.shape.dim; ++i) {
            EXPECT_NEAR(attended.out[(kv_head * c.shape.group + r) * c.shape.dim + i],
                        output.out[i], kTolerance)
                << n_pages << " pages, " << n_candidates << " tokens";
          }
        }
      }
      EXPECT_EQ(attended.account.tokens_read, 32 + n_candidates + 5);
      EXPECT_LT(attended.account.bytes_read, attended.account.bytes_dense);
      EXPECT_GT(attended.account.mass_estimated, 0);
      EXPECT_EQ(attended.account.mass_heads, c.shape.kv_heads * c.shape.group);
      EXPECT_NEAR(attended.account.mass_exact + attended.account.mass_estimated +
                      attended.account.mass_dropped,
                  static_cast<double>(attended.account.mass_heads), 1e-4);
      EXPECT_EQ(attended.account.solver.problems, 0);
    }
  }
}

TEST_F(CandidateReadTest, AsManyCandidatesAsTokensArePlainAttentionBitForBit) {
  for (const Case& c : kCases) {
    const auto layer = RandomLayer(c, 2);
    for (const std::string pages : {"1", "4", "19", "400"}) {
      const std::string arm = fmt::format("select=vashista,P={}{},Kc=", pages, kRest);
      const Attended all = Attend(arm + "0", *layer);
      const std::string n = std::to_string(std::min<int64_t>(19, std::stoll(pages)) * 32);
      EXPECT_EQ(Attend(arm + n, *layer).out, all.out);
      EXPECT_EQ(Attend(arm + "100000", *layer).out, all.out);
      EXPECT_EQ(Attend(arm + "100000", *layer).account.bytes_read, all.account.bytes_read);
    }
    const Attended dense = Attend(kAll, *layer);
    EXPECT_EQ(Attend("select=vashista,P=19,Kc=608" + kRest, *layer).out, dense.out);
    EXPECT_EQ(Attend("select=exact,budget=608" + kRest, *layer).out, dense.out);
  }
}

TEST_F(CandidateReadTest, WhoReadsEverythingForTheGapHasNoCandidates) {
  const auto layer = RandomLayer(kCases[0], 2);
  const std::string arm = "select=vashista,P=2,Kc=9,gap=1e6" + kRest;
  const Attended all = Attend(arm, *layer);
  EXPECT_EQ(all.out, Attend(kAll, *layer).out);
  EXPECT_EQ(all.account.fallback_gap, kCases[0].shape.kv_heads);
  const Attended capped = Attend(arm + ",fallback=cap", *layer);
  EXPECT_EQ(capped.out, Attend("select=vashista,P=2,Kc=9" + kRest, *layer).out);
  EXPECT_EQ(capped.account.capped_gap, kCases[0].shape.kv_heads);
}

// Whole pages are read, so that bounds of the unread mass hold.
TEST_F(CandidateReadTest, PagesByTheirTokensMayBeCertified) {
  const auto layer = RandomLayer(kCases[0], 2);
  const std::string arm = "select=entrokv,budget=64,tol=1e-9" + kRest + ",certify=sketch";
  const Attended all = Attend(arm, *layer);
  const Attended dense = Attend(kAll, *layer);
  EXPECT_EQ(all.account.fallback_certificate, kCases[0].shape.kv_heads);
  EXPECT_EQ(all.account.tokens_read, dense.account.tokens_read);
  // States of three parts are merged, each rounded once in a weight of at most 1.
  for (size_t i = 0; i < all.out.size(); ++i) EXPECT_NEAR(all.out[i], dense.out[i], 1e-4);
  const StatementAccount some =
      Attend("select=entrokv,budget=64" + kRest + ",certify=sketch", *layer).account.statements;
  EXPECT_EQ(some.intervals, layer->query_heads());
  EXPECT_GT(some.lo, 0);
  EXPECT_LT(some.width_max, 1);
}

// Equal keys: every page and token ties, so the lowest are chosen, the first tokens of page 1.
TEST_F(CandidateReadTest, TiesGoToTheLowerTokens) {
  const Case& c = kCases[0];
  auto layer = NewLayer(c, 3);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int head = 0; head < c.shape.kv_heads; ++head) {
      std::fill_n(layer->key(t, head).begin(), c.shape.dim, 0.0f);
      const bool chosen = t >= 32 && t < 32 + 7;
      std::fill_n(layer->value(t, head).begin(), c.shape.dim, chosen ? 1.0f : 0.0f);
    }
  }
  layer->Store(threads_);
  // 32 tokens of page 0, 5 of the last page and the 7: each 1/44; exact drops the others.
  for (float x : Attend("select=exact,budget=7" + kRest, *layer).out) {
    EXPECT_NEAR(x, 7.0 / 44, 1e-6);
  }
  // Page 1 has 25 more, with its mean 7/32.
  for (float x : Attend("select=vashista,P=1,Kc=7" + kRest, *layer).out) {
    EXPECT_NEAR(x, (7 + 25 * 7.0 / 32) / 69, 1e-6);
  }
}

TEST_F(CandidateReadTest, ExactTakesTheBestTokensOfAllAndKnowsTheMassOfTheRest) {
  for (const Case& c : kCases) {
    const auto layer = RandomLayer(c, 4);
    for (const int64_t budget : {1, 20, 300}) {
      for (const bool dropped : {true, false}) {
        const std::string residual = dropped ? "" : ",residual=centroid";
        const Attended attended =
            Attend(fmt::format("select=exact,budget={}{}{}", budget, kRest, residual), *layer);
        double exact = 0;
        double left_out = 0;
        double unread = 0;
        for (int kv_head = 0; kv_head < c.shape.kv_heads; ++kv_head) {
          Head head(*layer, kv_head);
          head.RouteExactly(budget);
          for (int r = 0; r < c.shape.group; ++r) {
            const Head::Output output = head.Attention(r, !dropped);
            exact += output.candidates / output.all;
            left_out += output.left_out / output.all;
            unread += 1 - (output.candidates + output.left_out) / output.all;
            for (int i = 0; dropped && i < c.shape.dim; ++i) {
              EXPECT_NEAR(attended.out[(kv_head * c.shape.group + r) * c.shape.dim + i],
                          output.out[i], kTolerance);
            }
          }
        }
        const double n = attended.account.mass_heads;
        EXPECT_EQ(attended.account.tokens_read, 32 + budget + 5);
        EXPECT_NEAR(attended.account.mass_exact, exact, 1e-4 * n);
        if (dropped) {
          EXPECT_NEAR(attended.account.mass_dropped, unread + left_out, 1e-4 * n);
          EXPECT_EQ(attended.account.mass_estimated, 0);
        } else {
          EXPECT_GE(attended.account.mass_estimated, left_out - 1e-4 * n);
        }
      }
    }
  }
}

// Half of what carries the mass is left out: its mass is not lost, and nothing vanishes beside it.
TEST_F(CandidateReadTest, CandidatesBesideALargeScoreThatIsLeftOutKeepTheirShares) {
  auto layer = NewLayer(kCases[0], 5);
  layer->Attract(5 * 32 + 1, 300);
  layer->Attract(5 * 32 + 2, 500);
  layer->Store(threads_);
  const Attended dropped = Attend("select=exact,budget=1" + kRest, *layer);
  for (float x : dropped.out) EXPECT_TRUE(std::isfinite(x));
  EXPECT_NEAR(dropped.account.mass_exact, 9, 1e-6);
}

TEST_F(CandidateReadTest, ANanReachesItsHeadAndNoOther) {
  auto layer = NewLayer(kCases[0], 6);
  layer->key(7 * 32 + 3, 1)[10] = std::numeric_limits<float>::quiet_NaN();
  layer->Store(threads_);
  for (const std::string& arm :
       {"select=vashista,P=4,Kc=9" + kRest, "select=exact,budget=9" + kRest,
        "select=entrokv,budget=64" + kRest, kAll + ",solver=fw", kAll + ",solver=eg",
        kAll + ",solver=eg,leakage=0.1"}) {
    const Attended attended = Attend(arm, *layer);
    for (size_t i = 0; i < attended.out.size(); ++i) {
      EXPECT_EQ(std::isnan(attended.out[i]), i / 64 / 3 == 1) << arm << ", head " << i / 64;
    }
    if (arm.find(",solver") != std::string::npos) {
      EXPECT_EQ(attended.account.solver.not_finite, 3) << arm;
      EXPECT_EQ(attended.account.solver.problems, 9) << arm;
      EXPECT_TRUE(std::isfinite(attended.account.solver.gap_max)) << arm;
    }
  }
}

// The same atoms in the same order: the same doubles, which the weights round to floats.
TEST_F(CandidateReadTest, SolversWeighTheCandidatesAsThePureOnesDo) {
  for (const Case& c : kCases) {
    const auto layer = RandomLayer(c, 7);
    for (const std::string solver : {"fw,iters=5", "eg,iters=9,eps=2", "eg,iters=4,leakage=0.2"}) {
      const bool is_fw = solver.starts_with("fw");
      if (solver.find("leakage") != std::string::npos && c.shape.dim > 64) continue;  // slow
      const Attended attended =
          Attend(fmt::format("select=vashista,P=2,Kc=24{},solver={}", kRest, solver), *layer);
      SolverAccount expected;
      for (int kv_head = 0; kv_head < c.shape.kv_heads; ++kv_head) {
        Head head(*layer, kv_head);
        head.Route(layer->scale(), 2, 24);
        const auto n = std::ssize(head.candidates);
        std::vector<double> atoms;
        for (int64_t t : head.candidates) {
          const double* key = head.rows.keys.data() + t * c.shape.dim;
          atoms.insert(atoms.end(), key, key + c.shape.dim);
        }
        const TensorView<const double, 2> view(atoms.data(), {n, c.shape.dim});
        for (int r = 0; r < c.shape.group; ++r) {
          std::vector<double> weights(n);
          SolverScratch scratch;
          double eps = 0;
          SolverResult result;
          if (is_fw) {
            result = FrankWolfe({view, head.queries[r]}, {.iterations = 5}, scratch, weights);
          } else {
            const bool leakage = solver.find("leakage") != std::string::npos;
            eps = leakage ? EpsilonForProblem({view, head.queries[r]}, 0.2) : 2;
            result = ExponentiatedGradient({view, head.queries[r]},
                                           {.eps = eps, .iterations = leakage ? 4 : 9}, scratch,
                                           weights);
          }
          expected.gap_max = std::max(expected.gap_max, result.gap);
          expected.distance_max = std::max(expected.distance_max, result.distance_bound);
          expected.iterations += result.iterations;
          expected.eps_max = std::max(expected.eps_max, eps);
          for (int i = 0; i < c.shape.dim; ++i) {
            double out = 0;
            for (int64_t j = 0; j < n; ++j) {
              out += weights[j] * head.rows.values[head.candidates[j] * c.shape.dim + i];
            }
            EXPECT_NEAR(attended.out[(kv_head * c.shape.group + r) * c.shape.dim + i], out, 2e-5)
                << solver;
          }
        }
      }
      const SolverAccount& account = attended.account.solver;
      EXPECT_EQ(account.problems, layer->query_heads());
      EXPECT_EQ(account.candidates, layer->query_heads() * (32 + 24 + 5));
      EXPECT_EQ(account.iterations, expected.iterations);
      EXPECT_DOUBLE_EQ(account.gap_max, expected.gap_max);
      EXPECT_DOUBLE_EQ(account.distance_max, expected.distance_max);
      EXPECT_DOUBLE_EQ(account.eps_max, expected.eps_max);
      EXPECT_EQ(account.value_distance_max > 0, !is_fw);
      EXPECT_EQ(account.not_finite, 0);
      EXPECT_EQ(attended.account.mass_heads, 0);
      EXPECT_GT(attended.seconds.solve, 0);
    }
  }
}

TEST_F(CandidateReadTest, ThreadsDoNotChangeABit) {
  const auto layer = RandomLayer(kCases[2], 8);
  for (const std::string& arm :
       {"select=vashista,P=4,Kc=40" + kRest, "select=exact,budget=40" + kRest,
        fmt::format("select=vashista,P=4,Kc=40{},solver=fw", kRest),
        "select=entrokv,bits=8,budget=96" + kRest}) {
    const Attended expected = Attend(arm, *layer);
    for (const int n : {1, 3}) {
      ThreadPool threads(n);
      const Attended attended = Attend(threads, arm, *layer);
      EXPECT_EQ(attended.out, expected.out) << arm;
      EXPECT_EQ(attended.account.bytes_read, expected.account.bytes_read) << arm;
    }
  }
}

// Page 4 has one token of e^8, page 9 32 of e^6: more mass, less in any one token.
TEST_F(CandidateReadTest, EntroKvPrefersTheMostImportantTokenToTheMostMass) {
  auto layer = NewLayer(kCases[0], 9);
  layer->Attract(4 * 32 + 17, 8);
  for (int64_t t = 9 * 32; t < 10 * 32; ++t) layer->Attract(t, 6);
  for (int head = 0; head < 3; ++head) {
    for (int64_t t = 0; t < kTokens; ++t) std::fill_n(layer->value(t, head).begin(), 64, 0.0f);
    std::fill_n(layer->value(4 * 32 + 17, head).begin(), 64, 1.0f);
    for (int64_t t = 9 * 32; t < 10 * 32; ++t)
      std::fill_n(layer->value(t, head).begin(), 64, -1.0f);
  }
  layer->Store(threads_);
  for (float x : Attend("select=entrokv,bits=8,budget=32" + kRest, *layer).out) EXPECT_GT(x, 0.5);
  for (float x : Attend("select=sketch,bits=8,budget=32" + kRest, *layer).out) EXPECT_LT(x, -0.5);
}

// Protected are page 0 and the short last one, of 21 pages.
TEST_F(CandidateReadTest, EntroKvFillsItsQuota) {
  const auto layer = RandomLayer(kCases[0], 10);
  const auto tokens = [&](const std::string& quota) {
    return Attend("select=entrokv,quota=" + quota + kRest, *layer).account.tokens_read;
  };
  EXPECT_EQ(tokens("1"), 32 + 5);
  EXPECT_EQ(tokens("2"), 32 + 5);
  EXPECT_EQ(tokens("5"), 4 * 32 + 5);
  EXPECT_EQ(tokens("21"), kTokens);
  EXPECT_EQ(tokens("500"), kTokens);
  EXPECT_EQ(Attend("select=entrokv,budget=96" + kRest, *layer).account.tokens_read, 4 * 32 + 5);
}

}  // namespace
}  // namespace winnow
