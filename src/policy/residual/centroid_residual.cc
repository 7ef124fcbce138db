#include <cmath>

#include "ops/attention_state.h"
#include "policy/residual/residual.h"

namespace winnow {
namespace {

// Mass of a page log n + q·k̄, value the mean V: CentroidEstimate over the stored means.
class CentroidResidual : public ResidualEstimator {
 public:
  PlaneSet planes() const override { return {Plane::kKeyMean, Plane::kValueMean}; }

  void Begin(int64_t n_heads) override { unread_.resize(n_heads); }
  void Plan(int64_t head, const UnreadPages& unread) override { unread_[head] = unread; }
  void Estimate(const LayerStep& step, ResidualStates states, int64_t* bytes_read) override {
    if (step.queries.empty()) return;
    const PageLayout& layout = *step.queries[0].kv.layout;
    const int group = step.params.query_heads / layout.kv_heads;
    step.pool->ForEach(std::ssize(unread_) * group, [&](int64_t task, int /*thread*/) {
      const int64_t h = task / group;
      const int64_t query = h / layout.kv_heads;
      const auto kv_head = static_cast<int>(h % layout.kv_heads);
      const int64_t query_head = static_cast<int64_t>(kv_head) * group + task % group;
      const int64_t row = query * step.params.query_heads + query_head;
      EstimateHead(step.params.scale, step.queries[query].q + query_head * layout.head_dim,
                   step.queries[query].kv, kv_head, unread_[h].pages,
                   states.out + row * layout.head_dim, states.log_mass + row);
    });
    for (const UnreadPages& pages : unread_) {
      *bytes_read +=
          std::ssize(pages.pages) * 2 * layout.padded_dim * static_cast<int64_t>(sizeof(float));
    }
  }

 private:
  static void EstimateHead(float scale, const float* q, const PagedKv& kv, int kv_head,
                           std::span<const int32_t> pages, float* out, float* log_mass) {
    const PageLayout& layout = *kv.layout;
    std::fill_n(out, layout.head_dim, 0.0f);
    *log_mass = kEmptyLogMass;
    for (int32_t page : pages) {
      const auto* mean = reinterpret_cast<const float*>(kv.PlaneOf(Plane::kKeyMean, page, kv_head));
      const auto* value =
          reinterpret_cast<const float*>(kv.PlaneOf(Plane::kValueMean, page, kv_head));
      float score = 0;
      for (int c = 0; c < layout.head_dim; ++c) score += q[c] * mean[c];
      MergeAttentionState(out, log_mass, value,
                          scale * score + std::log(static_cast<float>(layout.slots)),
                          layout.head_dim);
    }
  }

  std::vector<UnreadPages> unread_;  // [queries · K]
};

}  // namespace

std::unique_ptr<ResidualEstimator> MakeCentroidResidual(int /*key_bits*/, Params& /*params*/) {
  return std::make_unique<CentroidResidual>();
}

}  // namespace winnow
