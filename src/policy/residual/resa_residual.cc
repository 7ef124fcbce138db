#include <algorithm>
#include <memory>
#include <vector>

#include "core/check.h"
#include "policy/residual/estimators.h"
#include "policy/residual/head_residual.h"

namespace winnow {
namespace {

// Means over the prompt, and every page's attention under the mean query, which no later query
// changes.
class ResaMemory : public ResidualMemory {
 public:
  // Attention of a mean query over one page.
  struct PageState {
    float log_mass = 0;
    std::vector<float> out;  // [D]
  };
  struct Page {
    PageStamp stamp;
    std::vector<PageState> states;  // [R]; empty: not yet computed
  };
  struct Layer {
    int64_t n_tokens = 0;                  // of the prompt, seen so far
    std::vector<double> query, key;        // [H, D], [K, D]: sums over the prompt
    std::vector<std::vector<Page>> heads;  // [K][pages]
  };

  bool sees_prompt() const override { return true; }
  void SeePrompt(int layer, const Qkv& qkv) override {
    layers_.resize(std::max<size_t>(layers_.size(), layer + 1));
    Layer& seen = layers_[layer];
    seen.n_tokens += qkv.q.shape[0];
    AddRows(qkv.q, &seen.query);
    AddRows(qkv.k, &seen.key);
  }

  int64_t bytes() const override {
    int64_t floats = 0;
    for (const Layer& layer : layers_) {
      floats += 2 * std::ssize(layer.query) + 2 * std::ssize(layer.key);
      for (const auto& pages : layer.heads) {
        for (const Page& page : pages) {
          for (const PageState& state : page.states) floats += 1 + std::ssize(state.out);
        }
      }
    }
    return floats * static_cast<int64_t>(sizeof(float));
  }

  Layer& at(int layer) {
    WINNOW_CHECK(layer < std::ssize(layers_) && layers_[layer].n_tokens > 0,
                 "layer {} of a prompt that was not seen", layer);
    return layers_[layer];
  }

 private:
  static void AddRows(const TensorView<const float, 3>& rows, std::vector<double>* sums) {
    sums->resize(static_cast<size_t>(rows.stride(0)));
    for (int64_t t = 0; t < rows.shape[0]; ++t) {
      for (int64_t i = 0; i < std::ssize(*sums); ++i) (*sums)[i] += rows.row(t)[i];
    }
  }

  std::vector<Layer> layers_;
};

// ResaEstimate: one exponential shift of what the mean query makes of the unread pages.
class ResaResidual : public HeadResidual {
 public:
  PlaneSet planes() const override { return {}; }
  std::unique_ptr<ResidualMemory> NewMemory() const override {
    return std::make_unique<ResaMemory>();
  }

 protected:
  void Prepare(const LayerStep& step, std::span<const UnreadHead> heads,
               int64_t* bytes_read) override {
    bytes_.assign(heads.size(), 0);
    for (const UnreadHead& head : heads) {
      ResaMemory::Layer& layer = LayerOf(step, head);
      layer.heads.resize(head.kv().layout->kv_heads);
      auto& pages = layer.heads[head.kv_head];
      pages.resize(std::max<size_t>(pages.size(), head.unread.pages.back() + 1));
    }
    step.pool->ForEach(std::ssize(heads),
                       [&](int64_t i, int /*thread*/) { bytes_[i] = Refresh(step, heads[i]); });
    for (int64_t bytes : bytes_) *bytes_read += bytes;
  }

  bool EstimateHead(const LayerStep& step, const UnreadHead& head, int query_head, float* out,
                    float* log_mass) override {
    const ResaMemory::Layer& layer = LayerOf(step, head);
    const int64_t dim = head.kv().layout->head_dim;
    const int group = step.params.query_heads / head.kv().layout->kv_heads;
    const auto& pages = layer.heads[head.kv_head];
    PartialAttention under_mean = NoAttention(dim);
    for (int32_t page : head.unread.pages) {
      const ResaMemory::PageState& state = pages[page].states[query_head % group];
      Merge(under_mean, {{state.out.begin(), state.out.end()}, state.log_mass});
    }
    const ResaMeans means = {Mean(layer.query, layer.n_tokens, query_head, dim, step.params.scale),
                             Mean(layer.key, layer.n_tokens, head.kv_head, dim, 1)};
    const std::vector<double> q = ScaledQuery(step, *head.source, query_head);
    StoreState(ResaEstimate(means, q, under_mean), out, log_mass);
    return true;
  }

 private:
  static ResaMemory::Layer& LayerOf(const LayerStep& step, const UnreadHead& head) {
    WINNOW_CHECK(head.source->memory != nullptr, "no memory of the prompt");
    return static_cast<ResaMemory*>(head.source->memory)->at(step.layer);
  }

  static std::vector<double> Mean(const std::vector<double>& sums, int64_t n, int64_t head,
                                  int64_t dim, double scale) {
    std::vector<double> mean(sums.begin() + head * dim, sums.begin() + (head + 1) * dim);
    for (double& x : mean) x *= scale / static_cast<double>(n);
    return mean;
  }

  // Computes the states of the unread pages that are new or changed. Returns the bytes read.
  static int64_t Refresh(const LayerStep& step, const UnreadHead& head) {
    const PagedKv& kv = head.kv();
    const int64_t dim = kv.layout->head_dim;
    const int64_t slots = kv.layout->slots;
    const int group = step.params.query_heads / kv.layout->kv_heads;
    ResaMemory::Layer& layer = LayerOf(step, head);
    std::vector<int64_t> rows(slots);
    int64_t bytes =
        std::ssize(head.unread.pages) * group * (dim + 1) * static_cast<int64_t>(sizeof(float));
    for (int32_t index : head.unread.pages) {
      ResaMemory::Page& page = layer.heads[head.kv_head][index];
      const PageStamp stamp = StampOf(kv, index);
      if (!page.states.empty() && page.stamp == stamp) continue;
      TokenRows tokens;
      for (int64_t t = 0; t < slots; ++t) {
        rows[t] = t;
        tokens.Add(kv, head.kv_head, index * slots + t);
      }
      page.stamp = stamp;
      page.states.clear();
      for (int64_t r = 0; r < group; ++r) {
        const std::vector<double> query =
            Mean(layer.query, layer.n_tokens, head.kv_head * group + r, dim, step.params.scale);
        const PartialAttention state = AttendRows(query, tokens.Keys(), tokens.Values(), rows);
        page.states.push_back(
            {static_cast<float>(state.log_mass), {state.out.begin(), state.out.end()}});
      }
      bytes += kv.layout->HeadBytes(slots);
    }
    return bytes;
  }

  std::vector<int64_t> bytes_;  // [heads]
};

}  // namespace

std::unique_ptr<ResidualEstimator> MakeResaResidual(int /*key_bits*/, Params& /*params*/) {
  return std::make_unique<ResaResidual>();
}

}  // namespace winnow
