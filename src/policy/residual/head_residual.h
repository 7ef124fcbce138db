// What estimators share that work on one query head after the other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/residual/partial_attention.h"
#include "policy/residual/residual.h"

namespace winnow {

class HeadResidual : public ResidualEstimator {
 public:
  void Begin(int64_t n_heads) override { unread_.assign(n_heads, {}); }
  void Plan(int64_t head, const UnreadPages& unread) override { unread_[head] = unread; }
  void Estimate(const LayerStep& step, ResidualStates states, ResidualAccount* account) final;

 protected:
  // A KV head of a query with at least one page to estimate.
  struct UnreadHead {
    int64_t slot = 0;   // among those of this step
    int64_t query = 0;  // of the step
    int kv_head = 0;
    const LayerQuery* source = nullptr;
    UnreadPages unread;

    const PagedKv& kv() const { return source->kv; }
  };

  // What all query heads of a KV head need; `heads` has at least one. Adds what it read.
  virtual void Prepare(const LayerStep& step, std::span<const UnreadHead> heads,
                       int64_t* bytes_read) = 0;
  // The state of one query head, out [D], from any thread; it holds the identity before. False if a
  // guard leaves it without an estimate.
  virtual bool EstimateHead(const LayerStep& step, const UnreadHead& head, int query_head,
                            float* out, float* log_mass) = 0;

 private:
  std::vector<UnreadPages> unread_;  // [queries · K]
  std::vector<UnreadHead> heads_;
  std::vector<uint8_t> dropped_;  // [heads · R]
};

// q [D] of one query head, in double: times the model's scale, or as it is.
std::vector<double> ScaledQuery(const LayerStep& step, const LayerQuery& query, int query_head);
std::vector<double> RawQuery(const LayerQuery& query, int query_head);

void StoreState(const PartialAttention& state, float* out, float* log_mass);

// Keys and values of tokens of one KV head, in double: [n, D] each.
struct TokenRows {
  std::vector<double> keys;
  std::vector<double> values;
  int64_t dim = 0;

  // Appends token `token` of the layer.
  void Add(const PagedKv& kv, int kv_head, int64_t token);
  int64_t size() const { return dim == 0 ? 0 : std::ssize(keys) / dim; }
  TensorView<const double, 2> Keys() const { return {keys.data(), {size(), dim}}; }
  TensorView<const double, 2> Values() const { return {values.data(), {size(), dim}}; }
};

// Which contents of which page something was derived from (PagePool::versions).
struct PageStamp {
  PageId page = kNoPage;
  uint64_t version = 0;
  bool operator==(const PageStamp&) const = default;
};
inline PageStamp StampOf(const PagedKv& kv, int64_t page_index) {
  const PageId page = kv.pages[page_index];
  return {page, kv.versions[page]};
}

}  // namespace winnow
