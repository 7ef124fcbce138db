// How sure a sparse layer is of what it left unread, and reading more where that is not enough.
#include <algorithm>
#include <cmath>

#include "attention/sparse_decode.h"
#include "ops/attention_state.h"

namespace winnow {

void SparseDecode::OpenAllHeads() {
  open_.clear();
  for (size_t h = 0; h < heads_.size(); ++h) open_.push_back(h);
}

// Bounds every head; then those above tolerance read more, and only those are bounded again, until
// all are done. A head that has read everything is.
void SparseDecode::Certify(DecodePolicy& policy, const LayerStep& step,
                           std::span<const SparseSlot> slots) {
  shares_.resize(slots.size() * query_heads_);
  OpenAllHeads();
  while (true) {
    BoundShares(policy, step);
    std::erase_if(open_, [&](size_t h) { return !ShareNeedsMore(policy.rule, h); });
    if (open_.empty()) return;
    ReadMore(policy.rule, step, slots, &Head::share);
  }
}

// The same once the rest was estimated. What reads more leaves less to estimate; all heads are
// estimated again then, since estimators work on whole layers, and the others' come out the same.
void SparseDecode::CertifyOutput(DecodePolicy& policy, const LayerStep& step,
                                 std::span<const SparseSlot> slots) {
  errors_.resize(slots.size() * query_heads_);
  OpenAllHeads();
  while (true) {
    BoundErrors(policy, step, slots);
    std::erase_if(open_, [&](size_t h) { return !ErrorNeedsMore(policy.rule, h); });
    if (open_.empty()) return;
    ReadMore(policy.rule, step, slots, &Head::error);
    BoundShares(policy, step);
    if (policy.residual) Estimate(policy, step);
  }
}

void SparseDecode::FindReadHeads() {
  read_heads_.clear();
  for (size_t h : open_) {
    read_heads_.push_back({.query = static_cast<int64_t>(h) / layout_->kv_heads,
                           .kv_head = static_cast<int>(h % layout_->kv_heads),
                           .unread = heads_[h].choice.unread,
                           .tokens_read = heads_[h].outcome.tokens_read,
                           .log_mass = log_mass_.data() + h * group_,
                           .bounds = &heads_[h].bounds});
  }
}

void SparseDecode::BoundShares(DecodePolicy& policy, const LayerStep& step) {
  FindReadHeads();
  open_shares_.resize(open_.size() * group_);
  policy.certifier->Certify(step, read_heads_, open_shares_, &bytes_.certified);
  for (size_t i = 0; i < open_.size(); ++i) {
    std::copy_n(open_shares_.begin() + i * group_, group_, shares_.begin() + open_[i] * group_);
  }
}

void SparseDecode::BoundErrors(const DecodePolicy& policy, const LayerStep& step,
                               std::span<const SparseSlot> slots) {
  const int64_t dim = layout_->head_dim;
  FindReadHeads();
  if (policy.residual) merged_.Resize(open_.size() * group_ * dim);
  output_heads_.clear();
  for (size_t i = 0; i < open_.size(); ++i) {
    const size_t h = open_[i];
    const float* read_out = slots[h / layout_->kv_heads].out + h % layout_->kv_heads * group_ * dim;
    const float* out = read_out;
    if (policy.residual) {
      float* merged = merged_.data() + i * group_ * dim;
      std::copy_n(read_out, group_ * dim, merged);
      for (int r = 0; r < group_; ++r) {
        const size_t row = h * group_ + r;
        float log_mass = log_mass_[row];
        MergeAttentionState(merged + r * dim, &log_mass, rest_.data() + row * dim,
                            rest_log_mass_[row], dim);
      }
      out = merged;
    }
    output_heads_.push_back({.read = &read_heads_[i],
                             .shares = std::span(shares_).subspan(h * group_, group_),
                             .read_out = read_out,
                             .out = out});
  }
  open_errors_.resize(open_.size() * group_);
  output_errors_.Bound(step, output_heads_, open_errors_, &bytes_.certified);
  for (size_t i = 0; i < open_.size(); ++i) {
    std::copy_n(open_errors_.begin() + i * group_, group_, errors_.begin() + open_[i] * group_);
  }
}

// As estimates are, the mean of the group's heads is compared with the tolerance. What could not be
// bounded for its numbers is read whatever the rule: its reader has to see them.
bool SparseDecode::ShareNeedsMore(const ReadRule& rule, size_t head) {
  Head& h = heads_[head];
  double hi = 0;
  bool finite = true;
  for (int r = 0; r < group_; ++r) {
    const ShareInterval& share = shares_[head * group_ + r];
    finite = finite && share.statement.standing != Standing::kNotFinite;
    hi += share.hi;
  }
  return NeedsMore(rule, h, h.share, finite, rule.tolerance < 1 && hi > rule.tolerance * group_);
}

bool SparseDecode::ErrorNeedsMore(const ReadRule& rule, size_t head) {
  Head& h = heads_[head];
  double relative = 0;
  bool finite = true;
  for (int r = 0; r < group_; ++r) {
    const OutputError& error = errors_[head * group_ + r];
    finite = finite && error.statement.standing != Standing::kNotFinite;
    relative += error.relative();
  }
  return NeedsMore(rule, h, h.error, finite,
                   rule.bounds_error() && relative > rule.error_tolerance * group_);
}

bool SparseDecode::NeedsMore(const ReadRule& rule, Head& head, Verdict& verdict, bool finite,
                             bool over) {
  if (head.choice.unread.empty()) return false;
  head.not_finite = head.not_finite || !finite;
  verdict.over_tolerance = finite && over;
  return !finite || (over && rule.fallback != Fallback::kCap);
}

// The open heads read twice as many pages of the middle, or all, and merge them into what they
// have.
void SparseDecode::ReadMore(const ReadRule& rule, const LayerStep& step,
                            std::span<const SparseSlot> slots, Verdict Head::*cause) {
  const int64_t group_floats = static_cast<int64_t>(group_) * layout_->head_dim;
  more_.Resize(open_.size() * group_floats);
  more_log_mass_.Resize(open_.size() * group_);
  queries_.clear();
  for (size_t i = 0; i < open_.size(); ++i) {
    Head& head = heads_[open_[i]];
    const bool all = head.not_finite || rule.fallback == Fallback::kDense ||
                     head.share.widened + head.error.widened == kMaxWidenings;
    const int64_t n_more =
        all ? std::ssize(head.choice.unread) : std::max<int64_t>(std::ssize(head.choice.read), 1);
    (head.*cause).dense = all;
    (head.*cause).widened += all ? 0 : 1;
    const PagedKv& kv = slots[open_[i] / layout_->kv_heads].query.kv;
    head.more_ids.clear();
    for (int32_t page : head.choice.ReadMore(head.pooled, n_more)) {
      head.more_ids.push_back(kv.pages[page]);
    }
    const int64_t n_tokens = std::ssize(head.more_ids) * layout_->slots;
    head.outcome.tokens_read += n_tokens;
    head.outcome.bytes_read += layout_->HeadBytes(n_tokens);
    AddQuery(slots, open_[i], head.more_ids, n_tokens, more_.data() + i * group_floats,
             more_log_mass_.data() + i * group_);
  }
  DecodeAttention(*pool_, queries_, step.params, workspace_, nullptr);
  for (size_t i = 0; i < open_.size(); ++i) {
    float* out =
        slots[open_[i] / layout_->kv_heads].out + open_[i] % layout_->kv_heads * group_floats;
    for (int r = 0; r < group_; ++r) {
      const int64_t row = static_cast<int64_t>(r) * layout_->head_dim;
      MergeAttentionState(out + row, &log_mass_[open_[i] * group_ + r],
                          more_.data() + i * group_floats + row, more_log_mass_[i * group_ + r],
                          layout_->head_dim);
    }
  }
}

}  // namespace winnow
