// What the learned features keep of one sequence: log φ_k of every token of the middle, and the
// state over them, layer by layer (Residual-Mass Accounting, the memory of the unread).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/parallel.h"
#include "policy/residual/feature_file.h"
#include "policy/residual/feature_state.h"
#include "policy/residual/head_residual.h"

namespace winnow {

// Everything follows from the contents of the middle's pages, in their order: a sequence that was
// forked, rolled back, or started from resident pages has the same bits as one that was not.
class FeatureMemory : public ResidualMemory {
 public:
  int64_t bytes() const override;

  // Brings `layer` to the full pages [begin, end) of `kv`: pages whose contents are known stay, new
  // ones are computed; if a known one has changed or is gone, the state is summed anew. Returns the
  // number of pages computed.
  int64_t Sync(ThreadPool& pool, const FeatureMaps& maps, int layer, const PagedKv& kv,
               int64_t begin, int64_t end);

  // Of the pages of the last Sync.
  const FeatureState& Middle(int layer, int kv_head) const {
    return layers_[layer].heads[kv_head].middle;
  }
  // The state of some of them.
  FeatureState StateOf(int layer, const PagedKv& kv, int kv_head,
                       std::span<const int32_t> pages) const;

 private:
  struct Head {
    FeatureState middle{0, 0};
    // [pages·G, F]. As large as the keys and values themselves, but computing a feature takes half
    // a million multiplications, and the tokens that are read are subtracted in every step.
    std::vector<float> log_phi;
  };
  struct Layer {
    int64_t begin = 0;
    std::vector<PageStamp> stamps;  // of the pages from `begin` on
    std::vector<Head> heads;        // [K]
  };

  static void AddPage(const Layer& layer, const Head& head, const PagedKv& kv, int kv_head,
                      int64_t page, FeatureState* state);

  std::vector<Layer> layers_;
};

}  // namespace winnow
