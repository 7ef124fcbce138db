// The exact read where it is not plain attention over whole pages: only some tokens of the pages
// count (K_c), or a solver's weights take the place of softmax (Vashista 7.1).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/account.h"
#include "core/parallel.h"
#include "ops/decode_attention.h"
#include "policy/decode_policy.h"

namespace winnow {

// What the tokens that are no candidates have of a query head's mass, in units of the mass that is
// in its output.
struct LeftOut {
  double estimated = 0;  // in the output, by their page's mean value
  double dropped = 0;
};

struct CandidateOutcome {
  int64_t tokens_read = 0;  // keys and values both
  int64_t bytes_read = 0;
  std::vector<LeftOut> left_out;  // [R]
  SolverAccount solver;
};

// One KV head of one query.
struct CandidateQuery {
  DecodeQuery read;          // all tokens of kv; out [R, D] and log_mass [R] are written
  int64_t routed_begin = 0;  // of its pages, those that were routed to; the others always count
  int64_t routed_end = 0;
  // The candidates of the routed pages, counted from the first of them, if already chosen.
  std::span<const int32_t> tokens;
  CandidateOutcome* outcome = nullptr;
};

class CandidateRead {
 public:
  explicit CandidateRead(ThreadPool* pool) : pool_(pool) {}

  // Writes the results of every query: plain attention, with its bits, where all tokens are
  // candidates and the solver is softmax. With a projection the log mass is 0 and says nothing.
  // Moves the solver's time, of the slowest thread, from seconds->attention to seconds->solve.
  void Read(const DecodePolicy& policy, std::span<const CandidateQuery> queries,
            const DecodeAttentionParams& params, StageSeconds* seconds);

 private:
  // Of one thread.
  struct Scratch {
    std::vector<float> q;           // [R, D], scaled
    std::vector<float> scores;      // [R, n]
    std::vector<float> ones;        // [R, n]
    std::vector<float> weights;     // [R, n]
    std::vector<float> pooled;      // [n]
    std::vector<float> log_totals;  // [R]
    std::vector<bool> candidate;    // [n]
    std::vector<int64_t> tokens;    // the candidates
    std::vector<float> row;         // [D]
    std::vector<double> atoms;      // [M, D]
    std::vector<double> query;      // [D]
    std::vector<double> solution;   // [M]
    SolverScratch solver;
    double solve_seconds = 0;
  };
  class Task;  // one query that is no plain attention

  ThreadPool* pool_;
  std::vector<DecodeQuery> plain_;
  std::vector<const CandidateQuery*> others_;
  std::vector<Scratch> scratch_;
  DecodeWorkspace workspace_;
};

}  // namespace winnow
