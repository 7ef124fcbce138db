#include "attention/sparse_decode.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "ops/attention_state.h"
#include "ops/page_planes.h"
#include "ops/summary_scan.h"

namespace winnow {
namespace {

// Whether summaries of keys are estimated from that the selector does not look at: it would not
// notice that one holds nothing (ops/page_planes.h).
bool EstimatesUnseen(const DecodePolicy& policy) {
  return policy.residual && policy.residual->planes().Has(Plane::kKeyMean) &&
         policy.selector->planes().empty();
}

bool AnyNanMean(const PagedKv& kv, int kv_head, std::span<const int32_t> pages) {
  std::vector<float> mean(kv.layout->head_dim);
  return std::any_of(pages.begin(), pages.end(), [&](int32_t page) {
    LoadKeyStatistics(kv, Plane::kKeyMean, 0, page, kv_head, mean);
    return std::any_of(mean.begin(), mean.end(), [](float x) { return std::isnan(x); });
  });
}

}  // namespace

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
  Timed(seconds->score, [&] { policy.selector->Score(step, &bytes_.scanned); });
  Timed(seconds->select, [&] { Select(policy, layer, slots); });
  Timed(seconds->attention, [&] { Read(policy, slots, params, seconds); });
  if (policy.certifier) Timed(seconds->certify, [&] { Certify(policy, step, slots); });
  if (policy.residual) Timed(seconds->estimate, [&] { Estimate(policy, step); });
  if (policy.certifier) Timed(seconds->certify, [&] { CertifyOutput(policy, step, slots); });
  Timed(seconds->account, [&] { Account(policy, layer, slots); });
  if (policy.residual) Timed(seconds->estimate, [&] { Merge(slots); });
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
  bytes_ = {};
}

void SparseDecode::Select(DecodePolicy& policy, int layer, std::span<const SparseSlot> slots) {
  const int kv_heads = layout_->kv_heads;
  if (policy.residual && !policy.certifier) policy.residual->Begin(std::ssize(heads_));
  pool_->ForEach(std::ssize(heads_), [&](int64_t h, int /*thread*/) {
    const int64_t slot = h / kv_heads;
    Choose(policy, slots[slot], slot, static_cast<int>(h % kv_heads), &heads_[h]);
    // A certificate may ask for more to be read before the rest is estimated.
    if (policy.residual && !policy.certifier) Plan(policy, layer, h);
  });
}

void SparseDecode::Plan(DecodePolicy& policy, int layer, int64_t head) {
  const Head& h = heads_[head];
  std::span<const int32_t> unread = h.choice.unread;
  if (!policy.gates.Completes(layer, static_cast<int>(head % layout_->kv_heads))) unread = {};
  policy.residual->Plan(head, {.pages = unread,
                               .read = h.choice.read,
                               .pooled = h.pooled,
                               .shares = h.shares.data(),
                               .log_totals = h.log_totals.data()});
}

void SparseDecode::Choose(const DecodePolicy& policy, const SparseSlot& slot, int64_t slot_index,
                          int kv_head, Head* head) const {
  const PagedKv& kv = slot.query.kv;
  const PageMasses& masses = masses_[slot_index];
  const int slots = layout_->slots;
  head->middle = FindMiddle(policy.rule, kv.n_tokens, slot.n_generated, slots);
  head->shares.resize(group_ * masses.stride);
  head->pooled.resize(masses.n_pages);
  head->log_totals.resize(group_);
  const PageMasses of_head = masses.From(static_cast<int64_t>(kv_head) * group_, slots);
  PageShares(of_head, group_, head->shares.data(), head->pooled.data(), head->log_totals.data());
  if (policy.selector->chooses()) {
    policy.selector->Choose(policy.rule,
                            {slot_index, kv_head, group_, head->middle, head->shares.data()},
                            &head->choice);
  } else {
    ChoosePages(policy.rule, head->pooled, group_, slots, head->middle, &head->choice);
  }
  if (EstimatesUnseen(policy) && AnyNanMean(kv, kv_head, head->choice.unread)) {
    head->choice = {};
    head->choice.not_finite = true;
  }
  head->small_gap = policy.rule.gap > 0 && !head->choice.not_finite &&
                    ScoreGap(of_head, group_, head->middle) < policy.rule.gap;
  if (head->small_gap && policy.rule.fallback != Fallback::kCap) {
    head->choice.ReadMore(head->pooled, std::ssize(head->choice.unread));
  }
  head->share = head->error = {};
  head->not_finite = false;

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
  const int64_t n_tokens = std::ssize(head->ids) * slots - (n_pages * slots - kv.n_tokens);
  head->outcome = {.tokens_read = n_tokens, .bytes_read = layout_->HeadBytes(n_tokens)};
}

void SparseDecode::Read(const DecodePolicy& policy, std::span<const SparseSlot> slots,
                        const DecodeAttentionParams& params, StageSeconds* seconds) {
  const int64_t group_floats = static_cast<int64_t>(group_) * layout_->head_dim;
  log_mass_.Resize(slots.size() * query_heads_);
  queries_.clear();
  for (size_t h = 0; h < heads_.size(); ++h) {
    const size_t kv_head = h % layout_->kv_heads;
    AddQuery(slots, h, heads_[h].ids, heads_[h].outcome.tokens_read,
             slots[h / layout_->kv_heads].out + kv_head * group_floats,
             log_mass_.data() + h * group_);
  }
  if (policy.reads_candidates()) {
    ReadCandidates(policy, params, seconds);
  } else {
    DecodeAttention(*pool_, queries_, params, workspace_, nullptr);
  }
}

void SparseDecode::ReadCandidates(const DecodePolicy& policy, const DecodeAttentionParams& params,
                                  StageSeconds* seconds) {
  candidate_queries_.clear();
  for (size_t h = 0; h < heads_.size(); ++h) {
    Head& head = heads_[h];
    CandidateQuery query{.read = queries_[h], .outcome = &head.outcome};
    // Who falls back to everything has no routed pages whose tokens might not count.
    const bool fell_back = head.choice.not_finite || head.choice.all_for_tolerance ||
                           (head.small_gap && policy.rule.fallback != Fallback::kCap);
    if (!fell_back) {
      query.routed_begin = head.middle.begin;
      query.routed_end = head.middle.begin + std::ssize(head.choice.read);
      query.tokens = head.choice.tokens;
    }
    candidate_queries_.push_back(query);
  }
  candidate_read_.Read(policy, candidate_queries_, params, seconds);
}

// KV head `head` of all slots over pages `ids`.
void SparseDecode::AddQuery(std::span<const SparseSlot> slots, size_t head,
                            std::span<const PageId> ids, int64_t n_tokens, float* out,
                            float* log_mass) {
  const SparseSlot& slot = slots[head / layout_->kv_heads];
  const auto kv_head = static_cast<int>(head % layout_->kv_heads);
  PagedKv kv = slot.query.kv;
  kv.pages = ids;
  kv.n_tokens = n_tokens;
  queries_.push_back(
      {.q = slot.query.q + static_cast<int64_t>(kv_head) * group_ * layout_->head_dim,
       .kv = kv,
       .first_head = kv_head,
       .n_heads = 1,
       .begin = 0,
       .end = n_tokens,
       .out = out,
       .log_mass = log_mass});
}

void SparseDecode::Estimate(DecodePolicy& policy, const LayerStep& step) {
  if (policy.certifier) {
    policy.residual->Begin(std::ssize(heads_));
    pool_->ForEach(std::ssize(heads_),
                   [&](int64_t h, int /*thread*/) { Plan(policy, step.layer, h); });
  }
  rest_.Resize(step.queries.size() * query_heads_ * layout_->head_dim);
  rest_log_mass_.Resize(step.queries.size() * query_heads_);
  residual_dropped_.assign(step.queries.size(), 0);
  ResidualAccount account{.dropped = residual_dropped_.data()};
  policy.residual->Estimate(step, {rest_.data(), rest_log_mass_.data()}, &account);
  bytes_.estimated += account.bytes_read;  // again where certificates made heads read more
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

}  // namespace winnow
