// Plain records of what pruning a prompt in mid-prefill did, and why. Policies fill them, the
// ledger prints them.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace winnow {

// What one monitored layer came to. The last three are layers of which nothing can be proposed.
enum class PruneVerdict {
  kAccepted,
  kTargetNotMet,  // the scan saves fewer tokens than asked for
  kStreakNotMet,  // the proposal has not been stable for long enough
  kAuditFailed,
  kNonFinite,            // a statistic is NaN or infinite
  kInvalidResidual,      // every group's heads attend to sinks only
  kInvalidDocumentMass,  // Z below Z_min
};

enum class PruneOutcome {
  kPruned,
  kFullContext,       // no monitored layer was accepted
  kNoCandidates,      // nothing in the prompt may be dropped
  kZeroTarget,        // nothing has to be
  kNothingRemovable,  // every chunk has to stay (m0 = k)
  kDoesNotPay,        // it would take longer, even accepted at the first layer that can be
};

// As records have them: "accepted", "target_not_met", …; "pruned", "full_context",
// "bypass_no_candidates", ….
const char* Name(PruneVerdict verdict);
const char* Name(PruneOutcome outcome);

inline constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

// One monitored layer of one request. H query heads, k candidate chunks.
struct PruneLayerAccount {
  int layer = 0;  // from 1
  PruneVerdict verdict = PruneVerdict::kNonFinite;
  double document_mass = kUndefined;  // Z_l: pooled mass on candidates
  int64_t groups_fallen_back = 0;     // KV groups without an eligible head
  // Query heads of weight 0, which the envelope (12) says nothing about.
  int64_t heads_outside_envelope = 0;
  std::vector<double> head_share;  // [H] of the pool, Σ = 1; empty where a number is not finite
  std::vector<double> head_eps;    // [H]: what each of a head's rows may lose, row_error taken off

  // The scan (14).
  std::vector<int32_t> removed;  // chunks, in the order of removal
  int64_t saving = 0;            // tokens, D_l
  double worst_row_share = 0;    // largest removed mass of a row, as a share of its tolerance
  // The dual certificate (15)(16), in tokens: no removal within the tolerances saves more.
  double saving_bound = kUndefined;  // U_l
  int64_t saving_bound_tokens = -1;  // U_l as whole tokens
  bool target_infeasible = false;    // U_l proves it
  std::vector<double> row_prices;    // y [rows], of dual=lp; else one at most:
  int64_t price_row = -1;            // that row (h·W + u), or -1
  double row_price = 0;              // its y
  double count_price = 0;            // t

  // Stability (19) and the streak after this layer.
  double set_change = kUndefined;  // d_l; undefined without a predecessor
  int streak = 0;

  // The audit (17)(18); empty unless it ran.
  bool audited = false;
  bool audit_vacuous = false;        // the slack alone exceeds a head's tolerance
  bool audit_uninformative = false;  // it cannot fail once the scan has passed
  std::vector<double> audit_mean;    // [H]
  std::vector<double> audit_upper;   // [H]
  std::vector<double> audit_eps;     // [H], the tolerances
  double audit_worst_upper = kUndefined;

  // Of the removal (12), once the layer is accepted: pooled mass q, and by head what the envelope
  // allows the head's mean row to lose; undefined for heads outside of it.
  double pooled_removed = kUndefined;
  std::vector<double> head_removed;   // [H]
  std::vector<double> head_envelope;  // [H]

  // Only for the full report: the mass of each chunk in each proposal row (h·W + u).
  std::vector<double> constraint_mass;  // [rows, k]
  std::vector<double> constraint_eps;   // [rows]

  double seconds_score = 0;
  double seconds_scan = 0;
  double seconds_dual = 0;
  double seconds_audit = 0;

  // U_l − D_l: the most that the scan can have missed, in tokens.
  double gap() const { return saving_bound - static_cast<double>(saving); }
  double seconds() const { return seconds_score + seconds_scan + seconds_dual + seconds_audit; }
};

// One candidate chunk.
struct PruneChunkAccount {
  int64_t first = 0;  // position of its first token
  int64_t tokens = 0;
  bool kept = true;
  // At the accepted layer, else at the last that a removal could be proposed at.
  double score = kUndefined;
  double mass = kUndefined;  // M_i, its share of Z_l
};

// Seconds of a prompt's layers; the embedding and the logits are left out.
struct PrefillSeconds {
  double below = 0;      // layers that all tokens pass
  double above = 0;      // layers that only the retained ones pass; 0: nothing was dropped
  double auxiliary = 0;  // scores, scans, audits, parking and compaction
  double total() const { return below + above + auxiliary; }
};

// What one prompt was expected to take, before any layer was scored.
struct PruneForecast {
  double full = 0;       // without pruning
  int64_t kept = 0;      // tokens that stay if the target is met to the token
  int first_layer = 0;   // the first that can be accepted, from 1,
  PrefillSeconds first;  // and what pruning there takes
  int last_layer = 0;    // the last
  PrefillSeconds last;
  double saving() const { return full - first.total(); }  // (31), at best
  bool pays() const { return saving() > 0; }
};

// What it took, beside what was expected of the layer and the chunks that it came to.
struct PruneCostAccount {
  std::optional<PruneForecast> forecast;    // none: nobody knows what layers cost, or none was to
                                            // be scored
  std::optional<PrefillSeconds> predicted;  // none: nobody knows what layers cost
  PrefillSeconds measured;
  // (32), before the auxiliary seconds, and its ends; undefined where layers are not alike, tokens
  // were there already, or nothing was dropped.
  double ideal_share = kUndefined;
  double ideal_low = kUndefined;
  double ideal_high = kUndefined;
};

// One request.
struct PrefillAccount {
  std::string policy;   // the arm's clause with every parameter
  std::string profile;  // its name; "uncalibrated" without
  PruneOutcome outcome = PruneOutcome::kFullContext;
  std::string reason;  // why nothing was dropped; empty if something was

  int64_t prompt_tokens = 0;     // T
  int64_t candidate_tokens = 0;  // N
  int64_t target_saving = 0;     // tokens
  int64_t min_chunks = 0;        // m0
  double max_set_change = 0;     // θ
  int min_streak = 0;            // v
  // What the tolerances were made smaller by, since the rows were computed in float32.
  double row_error = 0;

  std::vector<int> monitored_layers;  // from 1; J of them
  std::vector<int64_t> observers;     // positions
  int64_t first_proposal = 0;         // index into observers

  std::string audit_mode;
  double audit_slack = 0;            // b of (17); for kl that of a mean of 0
  bool audit_vacuous = false;        // at every monitored layer,
  bool audit_uninformative = false;  // likewise
  uint64_t audit_seed = 0;
  std::vector<int64_t> audit_draws;  // indices into observers; empty: each of them once

  std::vector<PruneLayerAccount> layers;  // those that were seen, in order
  int accepted_layer = 0;                 // l*, from 1; 0: none
  int64_t removed_tokens = 0;
  std::vector<PruneChunkAccount> chunks;

  double seconds() const {
    double sum = 0;
    for (const PruneLayerAccount& layer : layers) sum += layer.seconds();
    return sum;
  }
};

}  // namespace winnow
