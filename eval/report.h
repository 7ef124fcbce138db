// Results of an evaluation: a line a sample and arm, and a cell a task, length and arm with its
// statistics against dense (docs/evaluation.md, docs/json.md).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "eval/arm_runs.h"
#include "eval/statistics.h"
#include "eval/task.h"

namespace winnow {

// One line of samples.jsonl.
nlohmann::ordered_json SampleJson(const EvalSample& sample, const ArmRun& run);

// {"positions", "kl", "top1_agreement", "nll_dense", "nll", "perplexity_ratio"}
nlohmann::ordered_json ToJson(const Fidelity& fidelity);

// How the paired statistics are made.
struct JudgeOptions {
  double margin = 0.03;  // loss of score that still counts as none, of the noninferiority test
  uint64_t seed = 1;     // of the bootstrap
};

// An arm against dense on the same prompts.
struct Verdict {
  PairedCounts counts;  // of hits
  double mcnemar_p = 1;
  double harm_p = 1;
  double difference = 0;  // of mean scores
  Interval interval;      // two-sided 95 %
  bool noninferior = false;
  bool bootstrap = false;  // by clustered bootstrap; else by Tango's score test
};

// `scores` and `reference` pair up; `clusters` tells which pairs share a context. At least one.
// Tango's test where every score is 0 or 1 and no context is shared, else the bootstrap.
Verdict Judge(const std::vector<double>& scores, const std::vector<double>& reference,
              const std::vector<uint64_t>& clusters, const JudgeOptions& options);

class EvalReport {
 public:
  explicit EvalReport(const JudgeOptions& options) : options_(options) {}

  // `runs` as RunArms returns them: the same arms for every sample.
  void Add(const EvalSample& sample, const std::vector<ArmRun>& runs);

  // The cells, in the order in which they were first seen.
  nlohmann::ordered_json CellsJson() const;
  std::string Table() const;

 private:
  struct ArmTotals {
    std::string arm;
    std::string resolved;  // "mixed": auto was dense for some samples only
    int64_t failed = 0;
    std::vector<double> scores;
    std::vector<BootstrapItem> kl;  // an item a sample that has a fidelity
    Fidelity fidelity;
    PhaseLedger decode;  // of the answers
    int64_t answer_tokens = 0;
    int64_t steps = 0;  // decode steps behind decode_seconds
    double decode_seconds = 0;
    double ttft_seconds = 0;
    double seconds = 0;
    // Of arms that prune: samples that they dropped something of, samples that name evidence, and
    // those of these where all of it is left.
    bool prunes = false;
    int64_t pruned = 0;
    int64_t with_evidence = 0;
    int64_t evidence_kept = 0;
  };
  struct Cell {
    std::string task;
    int64_t length = 0;
    bool scored = false;
    std::vector<uint64_t> clusters;
    std::vector<ArmTotals> arms;  // arms[0]: the reference
  };

  nlohmann::ordered_json CellJson(const Cell& cell, const ArmTotals& arm) const;
  std::string Row(const Cell& cell, const ArmTotals& arm) const;

  JudgeOptions options_;
  std::vector<Cell> cells_;
};

}  // namespace winnow
