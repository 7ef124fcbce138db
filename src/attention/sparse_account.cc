// What a sparse layer writes down: tokens, bytes, causes of falling back, and where the mass went.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "attention/sparse_decode.h"

namespace winnow {

static_assert(static_cast<int>(StatementKind::kEstimate) + 1 == KindCounts::kKinds);

namespace {

// In several sums, since each addition waits for the one before.
float SumOfPages(const float* shares, std::span<const int32_t> pages) {
  constexpr size_t kSums = 8;
  float sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= pages.size(); i += kSums) {
    for (size_t j = 0; j < kSums; ++j) sums[j] += shares[pages[i + j]];
  }
  for (; i < pages.size(); ++i) sums[0] += shares[pages[i]];
  return std::accumulate(sums, sums + kSums, 0.0f);
}

}  // namespace

void SparseDecode::Account(const DecodePolicy& policy, int layer,
                           std::span<const SparseSlot> slots) const {
  const size_t kv_heads = layout_->kv_heads;
  int64_t all_pages = 0;
  for (const PageMasses& masses : masses_) all_pages += masses.n_pages;
  for (size_t i = 0; i < slots.size(); ++i) {
    AttentionAccount* account = slots[i].account;
    if (account == nullptr) continue;
    const size_t first = layer * kv_heads;
    if (account->heads.size() < first + kv_heads) account->heads.resize(first + kv_heads);
    account->kv_heads = layout_->kv_heads;
    int64_t tokens = 0;
    int64_t bytes = 0;
    for (size_t h = 0; h < kv_heads; ++h) {
      const CandidateOutcome& outcome = heads_[i * kv_heads + h].outcome;
      tokens += outcome.tokens_read;
      bytes += outcome.bytes_read;
      account->solver += outcome.solver;
      AccountHead(policy, i * kv_heads + h, account, &account->heads[first + h]);
    }
    // What a batch scanned together is told apart by its sequences' pages.
    const double share = static_cast<double>(masses_[i].n_pages) / static_cast<double>(all_pages);
    const auto of_slot = [share](int64_t of_all) {
      return static_cast<int64_t>(std::llround(share * static_cast<double>(of_all)));
    };
    const int64_t n_tokens = slots[i].query.kv.n_tokens;
    account->tokens_read += (tokens + layout_->kv_heads / 2) / layout_->kv_heads;
    account->tokens_resident += n_tokens;
    account->bytes_read +=
        bytes + of_slot(bytes_.scanned) + of_slot(bytes_.certified) + of_slot(bytes_.estimated);
    account->bytes_dense += layout_->TokenBytes(n_tokens);
    account->bytes_scanned += of_slot(bytes_.scanned);
    account->bytes_certified += of_slot(bytes_.certified);
    account->bytes_estimated += of_slot(bytes_.estimated);
    if (policy.residual) account->residual_dropped += residual_dropped_[i];
    ++account->layers_sparse;
  }
}

void SparseDecode::AccountHead(const DecodePolicy& policy, size_t head, AttentionAccount* account,
                               HeadAccount* of_head) const {
  const Head& h = heads_[head];
  const bool capped = policy.rule.fallback == Fallback::kCap;
  account->widened += h.choice.widened > 0 ? 1 : 0;
  account->widened_certificate += h.share.widened > 0 ? 1 : 0;
  account->widened_error += h.error.widened > 0 ? 1 : 0;
  account->fallback_mass += h.choice.all_for_tolerance ? 1 : 0;
  account->fallback_certificate += h.share.dense && !h.not_finite ? 1 : 0;
  account->fallback_error += h.error.dense && !h.not_finite ? 1 : 0;
  account->fallback_gap += h.small_gap && !capped ? 1 : 0;
  account->fallback_not_finite += h.choice.not_finite || h.not_finite ? 1 : 0;
  account->capped_mass += h.choice.over_tolerance ? 1 : 0;
  account->capped_certificate += h.share.over_tolerance && capped ? 1 : 0;
  account->capped_error += h.error.over_tolerance && capped ? 1 : 0;
  account->capped_gap += h.small_gap && capped ? 1 : 0;
  ++of_head->steps;
  of_head->tokens_read += h.outcome.tokens_read;
  of_head->widened += h.choice.widened + h.share.widened + h.error.widened > 0 ? 1 : 0;
  of_head->dense += h.choice.unread.empty() ? 1 : 0;
  if (!policy.certify) return;
  for (int r = 0; r < group_; ++r) {
    AccountMass(policy, head, r, account, of_head);
    if (policy.certifier) AccountError(head * group_ + r, account, of_head);
  }
}

// Shares of one query head: Z_E was computed, Z_U is the selector's estimate of the unread mass,
// and of it the residual's Ẑ was put in. Tokens of pages that are read but do not count are left
// out with a mass that is known.
void SparseDecode::AccountMass(const DecodePolicy& policy, size_t head, int r,
                               AttentionAccount* account, HeadAccount* of_head) const {
  if (!policy.selector->estimates_mass()) {
    AccountStatement(policy, head, r, std::nullopt, account, of_head);
    return;
  }
  const Head& h = heads_[head];
  const float* shares = h.shares.data() + r * masses_[head / layout_->kv_heads].stride;
  const float unread = SumOfPages(shares, h.choice.unread);
  const size_t row = head * group_ + r;
  const double log_exact = log_mass_[row];
  const double over_exact = std::exp(h.log_totals[r] - log_exact);  // scanned mass / Z_E
  const double z_unread = unread * over_exact;                      // in units of Z_E
  const double z_rest =
      policy.residual == nullptr
          ? 0
          : std::min(z_unread, std::exp(static_cast<double>(rest_log_mass_[row]) - log_exact));
  const LeftOut left_out = h.outcome.left_out.empty() ? LeftOut{} : h.outcome.left_out[r];
  const double total = 1 + z_unread + left_out.dropped;
  const double not_exact = z_unread + left_out.estimated + left_out.dropped;
  AccountStatement(policy, head, r, not_exact / total, account, of_head);
  if (!std::isfinite(total)) return;
  const double exact = (1 - left_out.estimated) / total;
  const double estimated = (z_rest + left_out.estimated) / total;
  const double dropped = (z_unread - z_rest + left_out.dropped) / total;
  account->mass_exact += exact;
  account->mass_estimated += estimated;
  account->mass_dropped += dropped;
  account->mass_dropped_max = std::max(account->mass_dropped_max, dropped);
  ++account->mass_heads;
  of_head->mass_exact += exact;
  of_head->mass_estimated += estimated;
  of_head->mass_dropped += dropped;
  ++of_head->mass_heads;
}

// What may be said of the unread share of one query head, beside its estimate if there is one.
void SparseDecode::AccountStatement(const DecodePolicy& policy, size_t head, int r,
                                    std::optional<double> estimate, AttentionAccount* account,
                                    HeadAccount* of_head) const {
  const size_t row = head * group_ + r;
  StatementAccount& statements = account->statements;
  ShareInterval share{0, 0, {StatementKind::kExact}};
  if (policy.certifier) {
    share = shares_[row];
  } else if (!heads_[head].choice.unread.empty() || !heads_[head].outcome.left_out.empty()) {
    if (!estimate) return;
    share = {*estimate, *estimate, {StatementKind::kEstimate}};
  }
  if (share.statement.standing == Standing::kNotFinite || !std::isfinite(log_mass_[row]) ||
      !std::isfinite(share.hi)) {
    ++statements.not_finite;
    return;
  }
  const auto kind = static_cast<size_t>(share.statement.kind);
  ++statements.by_kind[kind];
  if (share.statement.standing == Standing::kVacuous) ++statements.vacuous[kind];
  if (!policy.certifier) return;
  statements.AddInterval(share.lo, share.hi);
  if (estimate && (*estimate < share.lo || *estimate > share.hi)) ++statements.estimate_outside;
  ++of_head->intervals;
  of_head->lo += share.lo;
  of_head->hi += share.hi;
  of_head->hi_max = std::max(of_head->hi_max, share.hi);
}

void SparseDecode::AccountError(size_t row, AttentionAccount* account, HeadAccount* of_head) const {
  const OutputError& error = errors_[row];
  OutputErrorAccount& errors = account->output_errors;
  if (error.statement.standing == Standing::kNotFinite || !std::isfinite(log_mass_[row])) {
    ++errors.not_finite;
    return;
  }
  const auto kind = static_cast<size_t>(error.statement.kind);
  ++errors.by_kind[kind];
  if (error.statement.standing == Standing::kVacuous) ++errors.vacuous[kind];
  errors.AddBound(error.bound, error.relative());
  ++of_head->error_bounds;
  of_head->error += error.relative();
  of_head->error_max = std::max(of_head->error_max, error.relative());
}

}  // namespace winnow
