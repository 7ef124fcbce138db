#include <algorithm>
#include <optional>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "policy/residual/feature_file.h"
#include "policy/residual/feature_memory.h"
#include "policy/residual/head_residual.h"

namespace winnow {
namespace {

// Learned features of the middle, less those of the pages that are read; or with them, the paper's
// ablation, which counts them twice. The sums are in double of the same stored features, so that
// the guards are double's.
class PhiResidual : public HeadResidual {
 public:
  PhiResidual(std::string file, bool subtract) : file_(std::move(file)), subtract_(subtract) {}
  PlaneSet planes() const override { return {}; }
  void Bind(const ModelIdentity& model) override {
    maps_ = LoadFeatureMaps(file_, model.config, model.path);
  }
  std::unique_ptr<ResidualMemory> NewMemory() const override {
    return std::make_unique<FeatureMemory>();
  }

 protected:
  void Prepare(const LayerStep& step, std::span<const UnreadHead> heads,
               int64_t* bytes_read) override {
    WINNOW_CHECK(maps_.has_value(), "feature maps without a model");
    if (!maps_->HasLayer(step.layer)) return;
    memories_.clear();
    own_.clear();
    for (size_t i = 0; i < heads.size(); ++i) {
      const bool first_of_query = i == 0 || heads[i].query != heads[i - 1].query;
      memories_.push_back(first_of_query ? MemoryOf(heads[i]) : memories_.back());
      if (first_of_query && !Untrained(heads[i])) *bytes_read += Sync(step, heads[i]);
    }
    if (subtract_) Subtract(step, heads);
    const PageLayout& layout = *heads[0].kv().layout;
    const int group = step.params.query_heads / layout.kv_heads;
    const int64_t token_bytes =
        maps_->shape().n_features * static_cast<int64_t>(sizeof(float)) + layout.HeadBytes(1) / 2;
    for (const UnreadHead& head : heads) {
      if (Untrained(head)) continue;
      *bytes_read +=
          memories_[head.slot]->Middle(step.layer, head.kv_head).bytes() + group * map_bytes();
      if (subtract_) *bytes_read += std::ssize(head.unread.read) * layout.slots * token_bytes;
    }
  }

  bool EstimateHead(const LayerStep& step, const UnreadHead& head, int query_head, float* out,
                    float* log_mass) override {
    if (!maps_->HasLayer(step.layer)) return true;
    if (Untrained(head)) return false;
    FeatureMapScratch scratch;
    std::vector<double> log_phi(maps_->shape().n_features);
    LogFeatures(maps_->Query(step.layer, query_head), RawQuery(*head.source, query_head), scratch,
                log_phi);
    const FeatureState& middle = memories_[head.slot]->Middle(step.layer, head.kv_head);
    if (!subtract_) {
      StoreState(middle.Estimate(log_phi, 0), out, log_mass);
      return true;
    }
    const PhiEstimate estimate =
        EstimateResidual(middle, *rests_[head.slot], log_phi, 0, kFloat64Guards.mass);
    StoreState(estimate.state, out, log_mass);
    return !estimate.dropped;
  }

 private:
  // Maps fail beyond the length that they were trained on, worse than dropping what is not read.
  bool Untrained(const UnreadHead& head) const {
    return head.kv().n_tokens > maps_->trained_tokens();
  }
  int64_t map_bytes() const {
    return FeatureMapParameters(maps_->shape()) * static_cast<int64_t>(sizeof(float));
  }

  FeatureMemory* MemoryOf(const UnreadHead& head) {
    if (head.source->memory != nullptr) return static_cast<FeatureMemory*>(head.source->memory);
    own_.push_back(std::make_unique<FeatureMemory>());
    return own_.back().get();
  }

  // The middle is what is read of it and what is not. Returns the bytes read.
  int64_t Sync(const LayerStep& step, const UnreadHead& head) {
    const PageLayout& layout = *head.kv().layout;
    int64_t begin = head.unread.pages.front();
    int64_t end = head.unread.pages.back() + 1;
    if (!head.unread.read.empty()) {
      begin = std::min<int64_t>(begin, head.unread.read.front());
      end = std::max<int64_t>(end, head.unread.read.back() + 1);
    }
    const int64_t n_new =
        memories_[head.slot]->Sync(*step.pool, *maps_, step.layer, head.kv(), begin, end);
    return layout.TokenBytes(n_new * layout.slots) +
           (n_new > 0 ? layout.kv_heads * map_bytes() : 0);
  }

  void Subtract(const LayerStep& step, std::span<const UnreadHead> heads) {
    rests_.resize(heads.size());
    step.pool->ForEach(std::ssize(heads), [&](int64_t i, int /*thread*/) {
      const UnreadHead& head = heads[i];
      if (Untrained(head)) return;
      const FeatureMemory& memory = *memories_[i];
      rests_[i] = memory.Middle(step.layer, head.kv_head);
      rests_[i]->Subtract(memory.StateOf(step.layer, head.kv(), head.kv_head, head.unread.read),
                          kFloat64Guards.feature);
    });
  }

  std::string file_;
  bool subtract_;
  std::optional<FeatureMaps> maps_;
  std::vector<FeatureMemory*> memories_;  // [heads]
  std::vector<std::unique_ptr<FeatureMemory>> own_;
  std::vector<std::optional<FeatureState>> rests_;  // [heads]
};

std::string FileOf(Params& params) {
  std::string file = params.Text("file");
  if (file.empty()) {
    Throw(ErrorKind::kUsage, "{} needs a file of feature maps: file=PATH", params.policy());
  }
  return file;
}

}  // namespace

std::unique_ptr<ResidualEstimator> MakePhiResidual(int /*key_bits*/, Params& params) {
  return std::make_unique<PhiResidual>(FileOf(params), /*subtract=*/true);
}

std::unique_ptr<ResidualEstimator> MakePhiNoSubResidual(int /*key_bits*/, Params& params) {
  return std::make_unique<PhiResidual>(FileOf(params), /*subtract=*/false);
}

}  // namespace winnow
