// What a good selector has to beat, and what none can.
#include <cmath>
#include <vector>

#include "core/rng.h"
#include "ops/kv_store.h"
#include "policy/select/selectors.h"

namespace winnow {
namespace {

// Gives every page the same score in every head; subclasses say which.
class RankingSelector : public Selector {
 public:
  PlaneSet planes() const override { return {}; }
  bool estimates_mass() const override { return false; }
  bool has_scores() const override { return false; }
  void Score(const LayerStep& step, int64_t* /*bytes_read*/) override {
    for (const PageMasses& masses : step.masses) {
      for (int64_t page = 0; page < masses.n_pages; ++page) {
        for (int head = 0; head < step.params.query_heads; ++head) {
          masses.max[head * masses.stride + page] = 0;
          masses.sum[head * masses.stride + page] = Rank(step.layer, masses.n_pages, page);
        }
      }
    }
  }

 protected:
  virtual float Rank(int layer, int64_t n_pages, int64_t page) const = 0;
};

class RecentSelector : public RankingSelector {
 protected:
  float Rank(int /*layer*/, int64_t /*n_pages*/, int64_t page) const override {
    return static_cast<float>(page + 1);
  }
};

// Another set in every layer and whenever a page fills, the same for the same seed.
class RandomSelector : public RankingSelector {
 public:
  explicit RandomSelector(uint64_t seed) : seed_(seed) {}

 protected:
  float Rank(int layer, int64_t n_pages, int64_t page) const override {
    Rng rng(seed_ + 0x9e3779b97f4a7c15ULL *
                        static_cast<uint64_t>((layer + 1) * 1'000'003LL + n_pages * 4099 + page));
    return static_cast<float>(rng.Uniform()) + 1e-6f;
  }

 private:
  uint64_t seed_;
};

// The true mass of every page, from its keys: what the best selector would choose, and as slow as
// reading everything.
class OracleSelector : public Selector {
 public:
  PlaneSet planes() const override { return {}; }
  void Score(const LayerStep& step, int64_t* bytes_read) override {
    for (size_t i = 0; i < step.queries.size(); ++i) {
      const LayerQuery& query = step.queries[i];
      const PageMasses& masses = step.masses[i];
      const int kv_heads = query.kv.layout->kv_heads;
      step.pool->ForEach(masses.n_pages * kv_heads, [&](int64_t task, int /*thread*/) {
        ScorePage(step.params, query, masses, task / kv_heads, static_cast<int>(task % kv_heads));
      });
      *bytes_read += query.kv.layout->TokenBytes(masses.n_pages * query.kv.layout->slots) / 2;
    }
  }

 private:
  static void ScorePage(const DecodeAttentionParams& params, const LayerQuery& query,
                        const PageMasses& masses, int64_t page, int kv_head) {
    const PageLayout& layout = *query.kv.layout;
    const int group = params.query_heads / layout.kv_heads;
    const auto dim = static_cast<size_t>(layout.head_dim);
    std::vector<float> key(dim);
    std::vector<float> value(dim);
    std::vector<double> scores(static_cast<size_t>(group) * layout.slots);
    for (int t = 0; t < layout.slots; ++t) {
      LoadKv(query.kv, kv_head, page * layout.slots + t, key.data(), value.data());
      for (int r = 0; r < group; ++r) {
        const float* q = query.q + static_cast<size_t>(kv_head * group + r) * dim;
        double score = 0;
        for (size_t c = 0; c < dim; ++c) score += static_cast<double>(q[c]) * key[c];
        scores[static_cast<size_t>(r) * layout.slots + t] = params.scale * score;
      }
    }
    for (int r = 0; r < group; ++r) {
      const double* of_head = scores.data() + static_cast<size_t>(r) * layout.slots;
      double max = of_head[0];
      for (int t = 1; t < layout.slots; ++t) max = std::max(max, of_head[t]);
      double sum = 0;
      for (int t = 0; t < layout.slots; ++t) sum += std::exp(of_head[t] - max);
      const int64_t at = (static_cast<int64_t>(kv_head) * group + r) * masses.stride + page;
      masses.max[at] = static_cast<float>(max);
      masses.sum[at] = static_cast<float>(sum);
    }
  }
};

// Reads everything, by way of the sparse path: what tests compare with dense.
class AllSelector : public RecentSelector {};

}  // namespace

std::unique_ptr<Selector> MakeOracleSelector(Params& /*params*/) {
  return std::make_unique<OracleSelector>();
}
std::unique_ptr<Selector> MakeRecentSelector(Params& /*params*/) {
  return std::make_unique<RecentSelector>();
}
std::unique_ptr<Selector> MakeRandomSelector(Params& params) {
  return std::make_unique<RandomSelector>(
      static_cast<uint64_t>(params.Int("seed", 0, 0, int64_t{1} << 62)));
}
std::unique_ptr<Selector> MakeAllSelector(Params& /*params*/) {
  return std::make_unique<AllSelector>();
}

}  // namespace winnow
