#include <algorithm>
#include <vector>

#include "ops/page_centroids.h"
#include "policy/residual/head_residual.h"

namespace winnow {
namespace {

// Mass of a page log n + q·k̄, value the mean V: CentroidEstimate over the stored means.
class CentroidResidual : public HeadResidual {
 public:
  PlaneSet planes() const override { return {Plane::kKeyMean, Plane::kValueMean}; }

 protected:
  void Prepare(const LayerStep& step, std::span<const UnreadHead> heads,
               int64_t* bytes_read) override {
    workspaces_.resize(std::max(workspaces_.size(), heads.size() * GroupOf(step)));
    for (const UnreadHead& head : heads) {
      const PageLayout& layout = *head.kv().layout;
      *bytes_read +=
          std::ssize(head.unread.pages) * (static_cast<int64_t>(layout.KeyRowBytes()) +
                                           layout.padded_dim * static_cast<int64_t>(sizeof(float)));
      for (size_t r = 0; r < GroupOf(step); ++r) {
        workspaces_[head.slot * GroupOf(step) + r].resize(
            CentroidWorkspaceFloats(layout, std::ssize(head.unread.pages)));
      }
    }
  }

  bool EstimateHead(const LayerStep& step, const UnreadHead& head, int query_head, float* out,
                    float* log_mass) override {
    PageCentroids(
        {.kv = &head.kv(),
         .kv_head = head.kv_head,
         .pages = head.unread.pages,
         .q = head.source->q + static_cast<int64_t>(query_head) * head.kv().layout->head_dim,
         .scale = step.params.scale,
         .out = out,
         .log_mass = log_mass},
        workspaces_[head.slot * GroupOf(step) + query_head % GroupOf(step)]);
    return true;
  }

 private:
  static size_t GroupOf(const LayerStep& step) {
    return step.params.query_heads / step.queries[0].kv.layout->kv_heads;
  }

  std::vector<std::vector<float>> workspaces_;  // [heads · R]
};

}  // namespace

std::unique_ptr<ResidualEstimator> MakeCentroidResidual(int /*key_bits*/, Params& /*params*/) {
  return std::make_unique<CentroidResidual>();
}

}  // namespace winnow
