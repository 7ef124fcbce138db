// The parameters of pruning in an arm.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "policy/params.h"
#include "policy/prefill/audit.h"

namespace winnow {

struct PruneParams {
  int64_t chunk_tokens = 96;  // documents are cut into chunks of about this many tokens
  // What a profile says, unless the arm says otherwise: the kept share of the candidates' tokens,
  // θ, v, and one tolerance for every row or head.
  std::optional<double> keep;
  std::optional<double> max_change;
  std::optional<int> min_streak;
  std::optional<double> eps;
  std::optional<double> eps_audit;
  std::optional<int64_t> target_tokens;  // candidates' tokens to keep, in place of a share

  double z_min = 0.05;
  double min_mass = 0.02;  // Z_min
  double eps_s = 1e-3;
  int64_t min_chunks = 1;  // m0
  AuditMode audit = AuditMode::kExact;
  double delta = 0.05;
  int64_t n_draws = 1600;       // m_a
  bool linear_program = false;  // dual=lp
  int64_t sinks = 4;
  int64_t observers = 64;  // the last ones after the documents; all if there are fewer
  bool must_pay = true;    // prompts for which pruning is not expected to pay are left alone
  bool drop_kv = false;    // decode does not read what was dropped in the layers up to l*
  std::string profile;     // built-in name or file; empty: the model's own
  bool uncalibrated = false;
  std::vector<int> layers;  // from 1; only with uncalibrated; empty: all but the last
  uint64_t seed = 0;        // of the audit's draws, and of random orders

  // Throws Error(kUsage) for what is out of range or contradicts itself.
  static PruneParams FromParams(Params& params);

  // Tokens to save of `n_candidates`: N − floor(keep·N), or N − target_tokens, not below 0.
  int64_t TargetSaving(int64_t n_candidates, double profile_keep) const;
};

// "exact", "hoeffding", "kl"
const char* Name(AuditMode mode);

}  // namespace winnow
