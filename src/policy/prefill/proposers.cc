// The makers of all proposers and their registry.
#include <utility>

#include "core/rng.h"
#include "policy/prefill/proposer.h"
#include "policy/registry.h"

namespace winnow {
namespace {

double Temperature(Params& params) { return params.Number("tau", 1, 1e-6, 1e6); }
double Floor(Params& params) { return params.Number("zeta", 0.5, 1e-6, 1); }
double Concentration(Params& params) { return params.Number("lambda", 1, 0, 1000); }

// Scores S of (9). ζ = 1 spreads a group's weight evenly, and λ = 0 leaves log-ratios of mass: so
// the two ablations differ from the method in one factor each.
class AttentionProposer : public Proposer {
 public:
  AttentionProposer(double tau, double zeta, double lambda)
      : tau_(tau), zeta_(zeta), lambda_(lambda) {}
  void Configure(ScoreParams& params) const override {
    params.tau = tau_;
    params.zeta = zeta_;
    params.lambda = lambda_;
  }
  std::vector<double> Priorities(const PruneProblem& /*problem*/, const ChunkScores& scores,
                                 uint64_t /*seed*/) const override {
    return scores.score;
  }

 private:
  double tau_;
  double zeta_;
  double lambda_;
};

// What ranks without looking; the pool that its record shows weighs heads evenly.
class BlindProposer : public Proposer {
 public:
  void Configure(ScoreParams& params) const override {
    params.zeta = 1;
    params.lambda = 0;
  }
};

// The oldest chunks go first.
class RecencyProposer : public BlindProposer {
 public:
  std::vector<double> Priorities(const PruneProblem& problem, const ChunkScores& /*scores*/,
                                 uint64_t /*seed*/) const override {
    std::vector<double> priorities(problem.chunk_tokens.size());
    for (size_t i = 0; i < priorities.size(); ++i) priorities[i] = static_cast<double>(i);
    return priorities;
  }
};

// The same order at every layer of a request, else no set would be stable.
class RandomProposer : public BlindProposer {
 public:
  std::vector<double> Priorities(const PruneProblem& problem, const ChunkScores& /*scores*/,
                                 uint64_t seed) const override {
    // Another stream than that of the audit's draws, which have to be independent.
    Rng rng(seed ^ 0xd1b54a32d192ed03ULL);
    std::vector<double> priorities(problem.chunk_tokens.size());
    for (double& priority : priorities) priority = rng.Uniform();
    return priorities;
  }
};

std::unique_ptr<Proposer> MakeNothing(Params& /*params*/) { return nullptr; }

std::unique_ptr<Proposer> MakeEntroPrefill(Params& params) {
  const double tau = Temperature(params);
  const double zeta = Floor(params);
  return std::make_unique<AttentionProposer>(tau, zeta, Concentration(params));
}

std::unique_ptr<Proposer> MakeMass(Params& params) {
  const double tau = Temperature(params);
  return std::make_unique<AttentionProposer>(tau, Floor(params), /*lambda=*/0);
}

std::unique_ptr<Proposer> MakeUniform(Params& params) {
  return std::make_unique<AttentionProposer>(/*tau=*/1, /*zeta=*/1, Concentration(params));
}

std::unique_ptr<Proposer> MakeRecency(Params& /*params*/) {
  return std::make_unique<RecencyProposer>();
}

std::unique_ptr<Proposer> MakeRandom(Params& /*params*/) {
  return std::make_unique<RandomProposer>();
}

using MakeFn = std::unique_ptr<Proposer>(Params& params);

const Registry<MakeFn>& Proposers() {
  static const Registry<MakeFn> kProposers("pruner", {{"none", MakeNothing},
                                                      {"entroprefill", MakeEntroPrefill},
                                                      {"mass", MakeMass},
                                                      {"uniform", MakeUniform},
                                                      {"random", MakeRandom},
                                                      {"recency", MakeRecency}});
  return kProposers;
}

}  // namespace

std::unique_ptr<Proposer> MakeProposer(std::string_view name, Params& params) {
  return Proposers().Find(name)(params);
}

}  // namespace winnow
