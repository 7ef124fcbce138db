#include "policy/prefill/observed_rows.h"

#include "core/error.h"

namespace winnow {

ObservedRows::ObservedRows(const PruneProblem& problem, std::span<const double> rows)
    : n_heads_(problem.query_heads),
      n_tokens_(problem.n_tokens()),
      n_rows_(problem.query_heads * problem.n_observers()),
      n_chunks_(problem.n_chunks()),
      mean_(n_heads_ * n_tokens_, 0),
      chunk_mass_(n_rows_ * n_chunks_, 0) {
  if (std::ssize(rows) != n_rows_ * n_tokens_) {
    Throw(ErrorKind::kInput, "{} attention weights of {} rows and {} tokens", rows.size(), n_rows_,
          n_tokens_);
  }
  for (int64_t r = 0; r < n_rows_; ++r) {
    const int64_t head = r / problem.n_observers();
    const bool proposes = r % problem.n_observers() >= problem.first_proposal;
    for (int64_t j = 0; j < n_tokens_; ++j) {
      const double a = rows[r * n_tokens_ + j];
      const int32_t chunk = problem.chunk_of[j];
      if (chunk >= 0) chunk_mass_[r * n_chunks_ + chunk] += a;
      if (proposes) mean_[head * n_tokens_ + j] += a;
    }
  }
  for (double& mean : mean_) mean /= static_cast<double>(problem.n_proposal());
  float_mean_.assign(mean_.begin(), mean_.end());
}

TensorView<const double, 2> ObservedRows::mean_attention() const {
  return {mean_.data(), {n_heads_, n_tokens_}};
}

TensorView<const double, 2> ObservedRows::chunk_mass() const {
  return {chunk_mass_.data(), {n_rows_, n_chunks_}};
}

LayerObservation ObservedRows::observation() const {
  return {{float_mean_.data(), {n_heads_, n_tokens_}}, chunk_mass()};
}

}  // namespace winnow
