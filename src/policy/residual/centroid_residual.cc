#include <cmath>
#include <vector>

#include "ops/attention_state.h"
#include "ops/page_planes.h"
#include "policy/residual/head_residual.h"

namespace winnow {
namespace {

// Mass of a page log n + q·k̄, value the mean V: CentroidEstimate over the stored means.
class CentroidResidual : public HeadResidual {
 public:
  PlaneSet planes() const override { return {Plane::kKeyMean, Plane::kValueMean}; }

 protected:
  void Prepare(const LayerStep& /*step*/, std::span<const UnreadHead> heads,
               int64_t* bytes_read) override {
    for (const UnreadHead& head : heads) {
      const PageLayout& layout = *head.kv().layout;
      *bytes_read +=
          std::ssize(head.unread.pages) * (static_cast<int64_t>(layout.KeyRowBytes()) +
                                           layout.padded_dim * static_cast<int64_t>(sizeof(float)));
    }
  }

  bool EstimateHead(const LayerStep& step, const UnreadHead& head, int query_head, float* out,
                    float* log_mass) override {
    const PagedKv& kv = head.kv();
    const PageLayout& layout = *kv.layout;
    const float* q = head.source->q + static_cast<int64_t>(query_head) * layout.head_dim;
    std::vector<float> mean(layout.head_dim);
    for (int32_t page : head.unread.pages) {
      LoadKeyStatistics(kv, Plane::kKeyMean, 0, page, head.kv_head, mean);
      float score = 0;
      for (int c = 0; c < layout.head_dim; ++c) score += q[c] * mean[c];
      const auto* value =
          reinterpret_cast<const float*>(kv.PlaneOf(Plane::kValueMean, page, head.kv_head));
      MergeAttentionState(out, log_mass, value,
                          step.params.scale * score + std::log(static_cast<float>(layout.slots)),
                          layout.head_dim);
    }
    return true;
  }
};

}  // namespace

std::unique_ptr<ResidualEstimator> MakeCentroidResidual(int /*key_bits*/, Params& /*params*/) {
  return std::make_unique<CentroidResidual>();
}

}  // namespace winnow
