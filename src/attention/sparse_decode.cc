#include "attention/sparse_decode.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "ops/attention_state.h"
#include "ops/summary_scan.h"

namespace winnow {

bool SparseDecode::Applies(const DecodePolicy& policy, int layer, int64_t n_tokens,
                           int64_t n_generated, int slots) {
  if (layer < policy.rule.dense_layers) return false;
  const MiddlePages middle = FindMiddle(policy.rule, n_tokens, n_generated, slots);
  return middle.begin < middle.end;
}

void SparseDecode::Attend(DecodePolicy& policy, int layer, const DecodeAttentionParams& params,
                          std::span<const SparseSlot> slots, StageSeconds* seconds) {
  if (slots.empty()) return;
  layout_ = slots[0].query.kv.layout;
  query_heads_ = params.query_heads;
  group_ = query_heads_ / layout_->kv_heads;
  Prepare(policy, slots);
  const LayerStep step{.pool = pool_,
                       .layer = layer,
                       .params = params,
                       .queries = layer_queries_,
                       .masses = masses_};
  int64_t bytes_scanned = 0;
  int64_t bytes_estimated = 0;
  {
    ScopedTimer timer(seconds->score);
    policy.selector->Score(step, &bytes_scanned);
  }
  {
    ScopedTimer timer(seconds->select);
    const int kv_heads = layout_->kv_heads;
    if (policy.residual != nullptr) policy.residual->Begin(std::ssize(heads_));
    pool_->ForEach(std::ssize(heads_), [&](int64_t h, int /*thread*/) {
      const int64_t slot = h / kv_heads;
      const auto kv_head = static_cast<int>(h % kv_heads);
      Choose(policy, slots[slot], masses_[slot], kv_head, &heads_[h]);
      if (policy.residual == nullptr) return;
      const Head& head = heads_[h];
      std::span<const int32_t> unread = head.choice.unread;
      if (!policy.gates.Completes(layer, kv_head)) unread = {};
      policy.residual->Plan(h, {unread, head.pooled, head.shares.data(), head.log_totals.data()});
    });
  }
  {
    ScopedTimer timer(seconds->attention);
    Read(slots, params);
  }
  if (policy.residual != nullptr) {
    ScopedTimer timer(seconds->estimate);
    bytes_estimated = Estimate(policy, step);
  }
  {
    ScopedTimer timer(seconds->account);
    Account(policy, slots, bytes_scanned, bytes_estimated);
  }
  if (policy.residual != nullptr) {
    ScopedTimer timer(seconds->estimate);
    Merge(slots);
  }
}

void SparseDecode::Prepare(const DecodePolicy& policy, std::span<const SparseSlot> slots) {
  const bool with_weights = policy.wants_weights();
  int64_t n_values = 0;
  for (const SparseSlot& slot : slots) {
    WINNOW_CHECK(*slot.query.kv.layout == *layout_);
    n_values += query_heads_ * (slot.query.kv.n_tokens / layout_->slots);
  }
  mass_values_.Resize(2 * n_values);
  if (with_weights) weights_.Resize(n_values * layout_->slots);
  layer_queries_.clear();
  masses_.clear();
  float* values = mass_values_.data();
  uint8_t* weights = with_weights ? weights_.data() : nullptr;
  for (const SparseSlot& slot : slots) {
    const int64_t n_pages = slot.query.kv.n_tokens / layout_->slots;
    const int64_t n = query_heads_ * n_pages;
    layer_queries_.push_back(slot.query);
    masses_.push_back({.n_pages = n_pages,
                       .stride = n_pages,
                       .max = values,
                       .sum = values + n,
                       .weights = weights});
    values += 2 * n;
    if (with_weights) weights += n * layout_->slots;
  }
  heads_.resize(slots.size() * layout_->kv_heads);
}

void SparseDecode::Choose(const DecodePolicy& policy, const SparseSlot& slot,
                          const PageMasses& masses, int kv_head, Head* head) const {
  const PagedKv& kv = slot.query.kv;
  const int slots = layout_->slots;
  head->middle = FindMiddle(policy.rule, kv.n_tokens, slot.n_generated, slots);
  head->shares.resize(group_ * masses.stride);
  head->pooled.resize(masses.n_pages);
  head->log_totals.resize(group_);
  PageShares(masses.From(static_cast<int64_t>(kv_head) * group_, slots), group_,
             head->shares.data(), head->pooled.data(), head->log_totals.data());
  ChoosePages(policy.rule, head->pooled, group_, slots, head->middle, &head->choice);

  const auto n_pages = std::ssize(kv.pages);
  head->ids.clear();
  const auto take = [&](int64_t begin, int64_t end) {
    head->ids.insert(head->ids.end(), kv.pages.begin() + begin, kv.pages.begin() + end);
  };
  if (head->choice.not_finite) {
    take(0, n_pages);
  } else {
    take(0, head->middle.begin);
    for (int32_t page : head->choice.read) head->ids.push_back(kv.pages[page]);
    take(head->middle.end, n_pages);
  }
  // Only the last page, which is always read, may be short.
  head->tokens_read = std::ssize(head->ids) * slots - (n_pages * slots - kv.n_tokens);
}

void SparseDecode::Read(std::span<const SparseSlot> slots, const DecodeAttentionParams& params) {
  const int64_t group_floats = static_cast<int64_t>(group_) * layout_->head_dim;
  log_mass_.Resize(slots.size() * query_heads_);
  queries_.clear();
  for (size_t h = 0; h < heads_.size(); ++h) {
    const SparseSlot& slot = slots[h / layout_->kv_heads];
    const auto kv_head = static_cast<int>(h % layout_->kv_heads);
    PagedKv kv = slot.query.kv;
    kv.pages = heads_[h].ids;
    kv.n_tokens = heads_[h].tokens_read;
    queries_.push_back({.q = slot.query.q + kv_head * group_floats,
                        .kv = kv,
                        .first_head = kv_head,
                        .n_heads = 1,
                        .begin = 0,
                        .end = kv.n_tokens,
                        .out = slot.out + kv_head * group_floats,
                        .log_mass = log_mass_.data() + h * group_});
  }
  DecodeAttention(*pool_, queries_, params, workspace_, nullptr);
}

int64_t SparseDecode::Estimate(DecodePolicy& policy, const LayerStep& step) {
  rest_.Resize(step.queries.size() * query_heads_ * layout_->head_dim);
  rest_log_mass_.Resize(step.queries.size() * query_heads_);
  int64_t bytes = 0;
  policy.residual->Estimate(step, {rest_.data(), rest_log_mass_.data()}, &bytes);
  return bytes;
}

void SparseDecode::Merge(std::span<const SparseSlot> slots) {
  for (size_t i = 0; i < slots.size(); ++i) {
    for (int head = 0; head < query_heads_; ++head) {
      const size_t row = i * query_heads_ + head;
      MergeAttentionState(slots[i].out + static_cast<int64_t>(head) * layout_->head_dim,
                          &log_mass_[row], rest_.data() + row * layout_->head_dim,
                          rest_log_mass_[row], layout_->head_dim);
    }
  }
}

void SparseDecode::Account(const DecodePolicy& policy, std::span<const SparseSlot> slots,
                           int64_t bytes_scanned, int64_t bytes_estimated) {
  int64_t all_pages = 0;
  for (const PageMasses& masses : masses_) all_pages += masses.n_pages;
  for (size_t i = 0; i < slots.size(); ++i) {
    AttentionAccount* account = slots[i].account;
    if (account == nullptr) continue;
    const int64_t n_tokens = slots[i].query.kv.n_tokens;
    int64_t tokens = 0;
    for (int h = 0; h < layout_->kv_heads; ++h) {
      const Head& head = heads_[i * layout_->kv_heads + h];
      tokens += head.tokens_read;
      account->widened += head.choice.widened > 0 ? 1 : 0;
      account->fallback_mass += head.choice.all_for_tolerance ? 1 : 0;
      account->fallback_not_finite += head.choice.not_finite ? 1 : 0;
    }
    // What a batch scanned together is told apart by its sequences' pages.
    const double share = static_cast<double>(masses_[i].n_pages) / static_cast<double>(all_pages);
    const auto scanned = std::llround(share * static_cast<double>(bytes_scanned));
    const auto estimated = std::llround(share * static_cast<double>(bytes_estimated));
    account->tokens_read += (tokens + layout_->kv_heads / 2) / layout_->kv_heads;
    account->tokens_resident += n_tokens;
    account->bytes_read += layout_->HeadBytes(tokens) + scanned + estimated;
    account->bytes_dense += layout_->TokenBytes(n_tokens);
    account->bytes_scanned += scanned;
    account->bytes_estimated += estimated;
    ++account->layers_sparse;
    if (policy.certify && policy.selector->estimates_mass()) AccountMass(policy, i, account);
  }
}

// Shares by query head: Z_E was computed, Z_U is the selector's estimate of the unread mass, and of
// it the residual's Ẑ was put in.
void SparseDecode::AccountMass(const DecodePolicy& policy, size_t slot_index,
                               AttentionAccount* account) const {
  for (int query_head = 0; query_head < query_heads_; ++query_head) {
    const Head& head = heads_[slot_index * layout_->kv_heads + query_head / group_];
    const int r = query_head % group_;
    const float* shares = head.shares.data() + r * masses_[slot_index].stride;
    float unread = 0;
    for (int32_t page : head.choice.unread) unread += shares[page];
    const size_t row = slot_index * query_heads_ + query_head;
    const double log_exact = log_mass_[row];
    const double over_exact = std::exp(head.log_totals[r] - log_exact);  // scanned mass / Z_E
    const double z_unread = unread * over_exact;                         // in units of Z_E
    const double z_rest =
        policy.residual == nullptr
            ? 0
            : std::min(z_unread, std::exp(static_cast<double>(rest_log_mass_[row]) - log_exact));
    const double total = 1 + z_unread;
    if (!std::isfinite(total)) continue;
    account->mass_exact += 1 / total;
    account->mass_estimated += z_rest / total;
    account->mass_dropped += (z_unread - z_rest) / total;
    account->mass_dropped_max = std::max(account->mass_dropped_max, (z_unread - z_rest) / total);
    ++account->mass_heads;
  }
}

}  // namespace winnow
