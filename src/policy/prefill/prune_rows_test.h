// Problems and attention rows that tests of pruning share.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "core/rng.h"
#include "policy/prefill/chunks.h"
#include "policy/prefill/prune_problem.h"

namespace winnow {

struct ProblemShape {
  int query_heads = 4;
  int kv_heads = 2;
  std::vector<int64_t> chunk_tokens = {5, 3, 8, 1, 6};
  int64_t sinks = 2;
  int64_t observers = 4;
  int64_t first_proposal = 0;
};

// Sinks, chunks with a protected token between any two, one more, then the observers.
inline PruneProblem MakeProblem(const ProblemShape& shape) {
  PruneProblem problem;
  problem.query_heads = shape.query_heads;
  problem.kv_heads = shape.kv_heads;
  problem.chunk_tokens = shape.chunk_tokens;
  problem.n_sinks = shape.sinks;
  problem.first_proposal = shape.first_proposal;
  problem.chunk_of.assign(shape.sinks, -1);
  for (size_t i = 0; i < shape.chunk_tokens.size(); ++i) {
    problem.chunk_of.insert(problem.chunk_of.end(), shape.chunk_tokens[i], static_cast<int>(i));
    problem.chunk_of.push_back(-1);
  }
  for (int64_t u = 0; u < shape.observers; ++u) {
    problem.observers.push_back(problem.n_tokens());
    problem.chunk_of.push_back(-1);
  }
  return problem;
}

inline std::vector<int64_t> RandomChunks(Rng& rng, int64_t n_chunks, int64_t most_tokens) {
  std::vector<int64_t> chunks(n_chunks);
  for (int64_t& tokens : chunks) tokens = 1 + static_cast<int64_t>(rng.Below(most_tokens));
  return chunks;
}

// Softmax of normal logits of this spread: one row [n].
inline std::vector<double> RandomRow(Rng& rng, int64_t n, double spread) {
  std::vector<double> row(n);
  double sum = 0;
  for (double& a : row) sum += a = std::exp(spread * rng.Normal());
  for (double& a : row) a /= sum;
  return row;
}

// Causal rows [H, U, T] of the problem's observers.
inline std::vector<double> RandomRows(Rng& rng, const PruneProblem& problem, double spread) {
  std::vector<double> rows;
  for (int h = 0; h < problem.query_heads; ++h) {
    for (const int64_t observer : problem.observers) {
      std::vector<double> row = RandomRow(rng, observer + 1, spread);
      row.resize(problem.n_tokens(), 0);
      rows.insert(rows.end(), row.begin(), row.end());
    }
  }
  return rows;
}

// Rows that give `chunk_mass` [k] to the chunks, evenly within each, and the rest to the first
// token; the same for every head and observer.
inline std::vector<double> RowsWithMass(const PruneProblem& problem,
                                        std::span<const double> chunk_mass) {
  std::vector<double> row(problem.n_tokens(), 0);
  double rest = 1;
  for (size_t j = 0; j < row.size(); ++j) {
    const int32_t chunk = problem.chunk_of[j];
    if (chunk < 0) continue;
    row[j] = chunk_mass[chunk] / static_cast<double>(problem.chunk_tokens[chunk]);
    rest -= row[j];
  }
  row[0] += rest;
  std::vector<double> rows;
  for (int64_t r = 0; r < problem.query_heads * problem.n_observers(); ++r) {
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

}  // namespace winnow
