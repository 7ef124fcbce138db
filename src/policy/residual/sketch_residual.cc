#include "core/error.h"
#include "ops/page_planes.h"
#include "ops/sketch_values.h"
#include "policy/residual/residual.h"
#include "policy/select/read_rule.h"

namespace winnow {
namespace {

// Mass from the low-bit keys of each token, value from a low-bit copy of its value. The pages with
// the least mass are not read: their mass is known and their value is dropped, that is, they are
// left out of both sums.
class SketchResidual : public ResidualEstimator {
 public:
  SketchResidual(int key_bits, int value_bits, double tail)
      : key_bits_(key_bits), value_bits_(value_bits), tail_(tail) {}
  PlaneSet planes() const override { return {ValueSketchPlane(value_bits_)}; }
  int weight_bits() const override { return key_bits_; }

  void Begin(int64_t n_heads) override {
    kept_.resize(n_heads);
    heads_.resize(n_heads);
  }
  void Plan(int64_t head, const UnreadPages& unread) override {
    kept_[head].assign(unread.pages.begin(), unread.pages.end());
    DropTail(unread.pooled, tail_, &kept_[head]);
    heads_[head] = {kept_[head], unread.shares, unread.log_totals};
  }

  void Estimate(const LayerStep& step, ResidualStates states, ResidualAccount* account) override {
    if (step.queries.empty()) return;
    const PageLayout& layout = *step.queries[0].kv.layout;
    const int kv_heads = layout.kv_heads;
    queries_.clear();
    for (size_t i = 0; i < step.queries.size(); ++i) {
      const size_t first_head = i * step.params.query_heads;
      queries_.push_back({.kv = step.queries[i].kv,
                          .masses = step.masses[i],
                          .heads = std::span(heads_).subspan(i * kv_heads, kv_heads),
                          .out = states.out + first_head * layout.head_dim,
                          .log_mass = states.log_mass + first_head});
    }
    SketchValues(*step.pool, queries_, step.params.query_heads, value_bits_, workspace_,
                 &account->bytes_read);
  }

 private:
  int key_bits_;
  int value_bits_;
  double tail_;
  std::vector<std::vector<int32_t>> kept_;  // [queries · K]
  std::vector<EstimatedPages> heads_;       // [queries · K]
  std::vector<SketchValuesQuery> queries_;
  SketchValuesWorkspace workspace_;
};

}  // namespace

std::unique_ptr<ResidualEstimator> MakeSketchResidual(int key_bits, Params& params) {
  if (key_bits == 0) {
    Throw(ErrorKind::kUsage,
          "residual=sketch weighs each token by the selector's sketch of its key: use it with "
          "select=sketch");
  }
  // Four bits and a tail of 1 to 3 % read about as many bytes as two bits and 0.2 %, and stay three
  // times as close to dense (docs/benchmarks.md).
  const int bits = std::stoi(params.Choice("bits", "4", {"2", "4"}));
  return std::make_unique<SketchResidual>(key_bits, bits, params.Number("tail", 0.02, 0, 1));
}

}  // namespace winnow
