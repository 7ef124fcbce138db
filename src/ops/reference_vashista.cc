#include "ops/reference_vashista.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "ops/reference_hull.h"

namespace winnow::reference {
namespace {

using Vector = std::vector<double>;

double Dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double Norm(std::span<const double> a) { return std::sqrt(Dot(a, a)); }

// Solves A x = b for symmetric positive definite A [n, n], by Cholesky.
Vector SolvePositiveDefinite(Vector a, Vector b) {
  const size_t n = b.size();
  for (size_t j = 0; j < n; ++j) {
    for (size_t k = 0; k < j; ++k) a[j * n + j] -= a[j * n + k] * a[j * n + k];
    a[j * n + j] = std::sqrt(a[j * n + j]);
    for (size_t i = j + 1; i < n; ++i) {
      for (size_t k = 0; k < j; ++k) a[i * n + j] -= a[i * n + k] * a[j * n + k];
      a[i * n + j] /= a[j * n + j];
    }
  }
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k < i; ++k) b[i] -= a[i * n + k] * b[k];
    b[i] /= a[i * n + i];
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t k = i + 1; k < n; ++k) b[i] -= a[k * n + i] * b[k];
    b[i] /= a[i * n + i];
  }
  return b;
}

// The dual of the entropic projection, ψ(r) = ½‖r‖² − <q, r> + ε·log Σ exp(<u_j, r>/ε), at one r.
// Its minimiser is r_ε = q − y_ε, and α_ε = softmax(Uᵀ r_ε/ε).
class Dual {
 public:
  Dual(TensorView<const double, 2> atoms, std::span<const double> q) : atoms_(atoms), q_(q) {
    for (int64_t j = 0; j < atoms.shape[0]; ++j) {
      radius_ = std::max(radius_, Norm({atoms.row(j), q.size()}));
    }
  }

  void Evaluate(std::span<const double> r, double eps) {
    const auto [n, dim] = atoms_.shape;
    log_weights_.resize(n);
    double max = -std::numeric_limits<double>::infinity();
    for (int64_t j = 0; j < n; ++j) {
      log_weights_[j] = Dot(r, {atoms_.row(j), q_.size()});
      max = std::max(max, log_weights_[j]);
    }
    // Relative to the largest, so that the weights add up to one however large s/ε is.
    double sum = 0;
    for (double& value : log_weights_) {
      value = (value - max) / eps;
      sum += std::exp(value);
    }
    weights_.resize(n);
    readout_.assign(dim, 0.0);
    for (int64_t j = 0; j < n; ++j) {
      log_weights_[j] -= std::log(sum);
      weights_[j] = std::exp(log_weights_[j]);
      for (int64_t d = 0; d < dim; ++d) readout_[d] += weights_[j] * atoms_.row(j)[d];
    }
    gradient_.resize(dim);
    for (int64_t d = 0; d < dim; ++d) gradient_[d] = r[d] - q_[d] + readout_[d];
    const double log_partition = max + eps * std::log(sum);
    value_ = Dot(r, r) / 2 - Dot(q_, r) + log_partition;
    value_size_ = Dot(r, r) + Norm(q_) * Norm(r) + std::abs(log_partition);
  }

  // −H⁻¹·∇ψ, H = I + Cov_α(u)/ε.
  Vector NewtonDirection(double eps) const {
    const auto [n, dim] = atoms_.shape;
    Vector hessian(dim * dim, 0.0);
    Vector difference(dim);
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t d = 0; d < dim; ++d) difference[d] = atoms_.row(j)[d] - readout_[d];
      for (int64_t i = 0; i < dim; ++i) {
        for (int64_t d = 0; d < dim; ++d) {
          hessian[i * dim + d] += weights_[j] / eps * difference[i] * difference[d];
        }
      }
    }
    for (int64_t d = 0; d < dim; ++d) hessian[d * dim + d] += 1;
    Vector direction = SolvePositiveDefinite(std::move(hessian), gradient_);
    for (double& value : direction) value = -value;
    return direction;
  }

  // What rounding leaves of a gradient.
  double GradientNoise() const {
    return 4 * std::numeric_limits<double>::epsilon() * (Norm(q_) + radius_);
  }

  const Vector& weights() const { return weights_; }
  const Vector& log_weights() const { return log_weights_; }
  const Vector& readout() const { return readout_; }
  const Vector& gradient() const { return gradient_; }
  double value() const { return value_; }
  // Size of the terms of ψ: its rounding is relative to them.
  double value_size() const { return value_size_; }
  double radius() const { return radius_; }

 private:
  TensorView<const double, 2> atoms_;
  std::span<const double> q_;
  double radius_ = 0;  // max ‖u_j‖
  Vector weights_, log_weights_, readout_, gradient_;
  double value_ = 0;
  double value_size_ = 0;
};

// Newton's method from `r`, which it replaces. Near the end ψ cannot tell two points apart while
// its gradient still can, so a step that shrinks the gradient is as good as one that lowers ψ.
void Newton(Dual& dual, double eps, Vector& r) {
  dual.Evaluate(r, eps);
  for (int round = 0; round < 200; ++round) {
    const double norm = Norm(dual.gradient());
    if (norm <= dual.GradientNoise()) return;
    const double value = dual.value();
    const Vector direction = dual.NewtonDirection(eps);
    const double slope = Dot(dual.gradient(), direction);
    Vector trial(r.size());
    const bool at_end = -slope <= 1e-10 * dual.value_size();
    double length = 1;
    for (; length > 1e-12; length /= 2) {
      for (size_t d = 0; d < r.size(); ++d) trial[d] = r[d] + length * direction[d];
      dual.Evaluate(trial, eps);
      const bool better =
          at_end ? Norm(dual.gradient()) < norm : dual.value() <= value + 1e-4 * length * slope;
      if (better) break;
    }
    if (length <= 1e-12) {
      dual.Evaluate(r, eps);
      return;
    }
    r = trial;
  }
}

// log(α/(1 − α)) of the root of α − q + ε·log(α/(1 − α)) = 0, by bisection and Newton in t: the
// derivative ε + α(1 − α) is positive, so the root is single.
double TwoAtomLogit(double q, double eps) {
  double low = (q - 1) / eps;  // ε·t = q − α lies in (q − 1, q)
  double high = q / eps;
  double t = (low + high) / 2;
  for (int round = 0; round < 400; ++round) {
    const double alpha = 1 / (1 + std::exp(-t));
    const double error = alpha - q + eps * t;
    (error > 0 ? high : low) = t;
    double next = t - error / (eps + alpha * (1 - alpha));
    if (!(low < next && next < high)) next = (low + high) / 2;
    if (next == t) break;
    t = next;
  }
  return t;
}

}  // namespace

EntropicSolution SolveEntropic(TensorView<const double, 2> atoms, std::span<const double> q,
                               double eps) {
  WINNOW_CHECK(atoms.shape[0] >= 1 && atoms.shape[1] == std::ssize(q) && eps > 0, "ε = {}", eps);
  for (double value : atoms.span()) WINNOW_CHECK(std::isfinite(value));
  for (double value : q) WINNOW_CHECK(std::isfinite(value));
  Dual dual(atoms, q);
  Vector r(q.begin(), q.end());
  // Newton's region of fast convergence shrinks with ε; the path r_ε is followed into it.
  double step_eps = eps;
  while (step_eps < dual.radius() * (dual.radius() + Norm(q))) step_eps *= 8;
  for (; step_eps > eps; step_eps /= 8) Newton(dual, step_eps, r);
  Newton(dual, eps, r);

  EntropicSolution solution;
  solution.weights = dual.weights();
  solution.log_weights = dual.log_weights();
  solution.readout = dual.readout();
  solution.readout_error = Norm(dual.gradient());  // ψ is strongly convex with modulus 1
  double square = 0;
  double negative_entropy = 0;
  for (size_t d = 0; d < q.size(); ++d) {
    solution.residual.push_back(q[d] - solution.readout[d]);
    square += solution.residual[d] * solution.residual[d];
  }
  for (size_t j = 0; j < solution.weights.size(); ++j) {
    negative_entropy += solution.weights[j] * solution.log_weights[j];
  }
  solution.objective = square / 2 + eps * negative_entropy;
  return solution;
}

TwoAtomSolution SolveTwoAtoms(double q, double eps) {
  WINNOW_CHECK(eps > 0 && std::isfinite(q), "q = {}, ε = {}", q, eps);
  TwoAtomSolution solution;
  solution.projection = std::clamp(q, 0.0, 1.0);
  solution.entropic = 1 / (1 + std::exp(-TwoAtomLogit(q, eps)));
  solution.gap = 0 < q && q < 1 ? std::numeric_limits<double>::infinity() : std::max(-q, q - 1);
  return solution;
}

double PageScoreBound(TensorView<const double, 2> page_keys, std::span<const double> residual) {
  const auto [n, dim] = page_keys.shape;
  WINNOW_CHECK(n >= 1 && dim == std::ssize(residual));
  Vector centre(dim, 0.0);
  Vector low(page_keys.row(0), page_keys.row(0) + dim);
  Vector high = low;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t d = 0; d < dim; ++d) {
      const double value = page_keys.row(i)[d];
      centre[d] += value / static_cast<double>(n);
      low[d] = std::min(low[d], value);
      high[d] = std::max(high[d], value);
    }
  }
  double radius = 0;
  for (int64_t i = 0; i < n; ++i) {
    Vector difference(page_keys.row(i), page_keys.row(i) + dim);
    for (int64_t d = 0; d < dim; ++d) difference[d] -= centre[d];
    radius = std::max(radius, Norm(difference));
  }
  double box = 0;
  for (int64_t d = 0; d < dim; ++d) box += std::max(residual[d] * low[d], residual[d] * high[d]);
  return std::min(box, Dot(residual, centre) + Norm(residual) * radius);
}

GlobalGap GlobalFrankWolfeGap(TensorView<const double, 2> keys, std::span<const double> q,
                              int64_t page_tokens, int64_t visited_page) {
  const int64_t n_tokens = keys.shape[0];
  const int64_t n_pages = page_tokens >= 1 ? (n_tokens + page_tokens - 1) / page_tokens : 0;
  WINNOW_CHECK(0 <= visited_page && visited_page < n_pages, "page {} of {}", visited_page, n_pages);
  const auto page = [&](int64_t index) {
    return keys.Slice(index * page_tokens, std::min(n_tokens, (index + 1) * page_tokens));
  };
  const HullProjection visited = ProjectOntoHull(page(visited_page), q);
  GlobalGap result;
  result.readout = visited.readout;
  double highest = visited.support_value;
  for (int64_t index = 0; index < n_pages; ++index) {
    if (index == visited_page) continue;
    result.page_upper.push_back(PageScoreBound(page(index), visited.residual));
    highest = std::max(highest, result.page_upper.back());
  }
  result.gap = highest - Dot(visited.residual, visited.readout);
  const HullProjection all = ProjectOntoHull(keys, q);
  double square = 0;
  for (size_t d = 0; d < q.size(); ++d) {
    square += (visited.readout[d] - all.readout[d]) * (visited.readout[d] - all.readout[d]);
  }
  result.distance = std::sqrt(square);
  return result;
}

}  // namespace winnow::reference
