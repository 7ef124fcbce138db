#include "policy/certify/read_mass.h"

#include <algorithm>
#include <cmath>

#include "ops/kv_store.h"

namespace winnow {

void LoadScaledQuery(const LayerStep& step, const ReadHead& head, int r, std::vector<double>* q) {
  const PageLayout& layout = *step.queries[head.query].kv.layout;
  const int group = step.params.query_heads / layout.kv_heads;
  const float* row = step.queries[head.query].q +
                     (static_cast<int64_t>(head.kv_head) * group + r) * layout.head_dim;
  q->resize(layout.head_dim);
  for (int c = 0; c < layout.head_dim; ++c) {
    (*q)[c] = static_cast<double>(step.params.scale) * row[c];
  }
}

void LargestOfShortPage(const PagedKv& kv, int kv_head, std::vector<double>* largest) {
  const PageLayout& layout = *kv.layout;
  largest->assign(layout.head_dim, 0.0);
  std::vector<float> key(layout.head_dim);
  std::vector<float> value(layout.head_dim);
  for (int64_t t = kv.n_tokens / layout.slots * layout.slots; t < kv.n_tokens; ++t) {
    LoadKv(kv, kv_head, t, key.data(), value.data());
    for (int c = 0; c < layout.head_dim; ++c) {
      const double x = std::abs(static_cast<double>(key[c]));
      double& so_far = (*largest)[c];
      so_far = std::isnan(x) ? x : std::max(so_far, x);
    }
  }
}

LogInterval ReadLogMass(const LayerStep& step, const ReadHead& head, int r, double magnitude) {
  const double log_mass = head.log_mass[r];
  const double error =
      DecodeLogMassError(step.queries[head.query].kv.layout->head_dim, head.tokens_read, magnitude);
  if (head.bounds != nullptr) head.bounds->log_mass_error[r] = error;
  LogInterval interval{log_mass - error, log_mass + error, {StatementKind::kDeterministic}};
  if (!std::isfinite(interval.lo) || !std::isfinite(interval.hi)) {
    interval.statement.standing = Standing::kNotFinite;
  }
  return interval;
}

}  // namespace winnow
