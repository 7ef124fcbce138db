#include <cmath>

#include "ops/kv_store_cpu.h"
#include "policy/certify/page_shapes.h"
#include "policy/certify/sample_bound.h"
#include "policy/certify/stored_summary.h"
#include "policy/select/read_rule.h"

namespace winnow {
namespace {

// From `n` tokens of the unread pages for each query head, with the pages' estimates as control
// variate and their summaries' range of logits as the range of the bound. A KV head's intervals
// hold together, however often it reads more, with probability 1 − δ over the draws, which follow
// from the seed, the layer, its length and the query head.
class SampleCertifier : public Certifier {
 public:
  // `scanned`: step.masses estimate the pages.
  SampleCertifier(int64_t n, double delta, uint64_t seed, bool scanned)
      : n_(n), delta_(delta), seed_(seed), scanned_(scanned) {}
  PlaneSet planes() const override { return StoredSummaryPlanes(); }

  void Certify(const LayerStep& step, std::span<const ReadHead> heads,
               std::span<ShareInterval> shares, int64_t* bytes_read) override {
    CertifyByShapes(step, heads, shares, scratch_, bytes_read,
                    [&](const ReadHead& head, size_t r, Scratch& scratch) {
                      return Sample(step, head, r, &scratch).log_mass;
                    });
  }

 private:
  struct Scratch : ShapedHead {
    std::vector<SampleStratum> strata;
    std::vector<SampleDraw> draws;
    std::vector<double> logits;
    std::vector<float> key;  // [D]
  };

  SampledMass Sample(const LayerStep& step, const ReadHead& head, size_t r,
                     Scratch* scratch) const {
    const LayerQuery& query = step.queries[head.query];
    const PageLayout& layout = *query.kv.layout;
    const size_t query_head = head.kv_head * scratch->pages.q.size() + r;
    // A logit in double is off by far less than this.
    const double rounding = 1e-12 * scratch->pages.magnitude[r];
    scratch->strata.clear();
    for (size_t i = 0; i < head.unread.size(); ++i) {
      const LogitShape& shape = scratch->pages.shapes[r * head.unread.size() + i];
      const size_t at = query_head * step.masses[head.query].stride + head.unread[i];
      const double estimate =
          scanned_ ? step.masses[head.query].max[at] + std::log(step.masses[head.query].sum[at])
                   : std::log(static_cast<double>(shape.n)) + shape.centre;
      scratch->strata.push_back(StratumOf(shape, estimate, rounding));
    }
    const SamplePlan plan(scratch->strata);
    scratch->draws.clear();
    scratch->logits.clear();
    Rng rng(StreamOf(step.layer, query.kv.n_tokens, query_head));
    scratch->key.resize(layout.head_dim);
    for (int64_t i = 0; i < n_ && plan.NeedsSample(); ++i) {
      const SampleDraw draw = plan.Draw(rng);
      scratch->draws.push_back(draw);
      const std::byte* row = query.kv.Keys(head.unread[draw.stratum], head.kv_head) +
                             static_cast<size_t>(draw.token) * layout.row_bytes;
      LoadRowCpu(layout.dtype, row, layout.head_dim, scratch->key.data());
      double logit = 0;
      for (int c = 0; c < layout.head_dim; ++c) {
        logit += scratch->pages.q[r][c] * scratch->key[c];
      }
      scratch->logits.push_back(logit);
    }
    scratch->bytes += std::ssize(scratch->draws) * static_cast<int64_t>(layout.row_bytes);
    // δ is shared out among the query heads of the group, and among the looks that a head may have:
    // it reads more, and is looked at again, until a look satisfies it.
    const double delta =
        delta_ / static_cast<double>(scratch->pages.q.size() * (1 + kMaxWidenings));
    return plan.Bound(scratch->draws, scratch->logits, delta);
  }

  // Each of them begins another sequence of draws.
  uint64_t StreamOf(int layer, int64_t n_tokens, size_t query_head) const {
    uint64_t stream = seed_;
    for (const uint64_t part :
         {static_cast<uint64_t>(layer), static_cast<uint64_t>(n_tokens), uint64_t{query_head}}) {
      stream = Rng(stream ^ (part + 1) * 0x9e3779b97f4a7c15ULL).Next();
    }
    return stream;
  }

  int64_t n_;
  double delta_;
  uint64_t seed_;
  bool scanned_;
  std::vector<Scratch> scratch_;  // [heads]
};

}  // namespace

std::unique_ptr<Certifier> MakeSampleCertifier(int key_bits, Params& params) {
  const int64_t n = params.Int("n", 64, 0, int64_t{1} << 20);
  const double delta = params.Number("delta", 0.05, 1e-12, 0.5);
  const auto seed = static_cast<uint64_t>(params.Int("seed", 0, 0, int64_t{1} << 62));
  return std::make_unique<SampleCertifier>(n, delta, seed, key_bits > 0);
}

}  // namespace winnow
