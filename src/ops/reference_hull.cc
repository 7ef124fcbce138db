#include "ops/reference_hull.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace winnow::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

using Vector = std::vector<double>;

double Dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double Norm(std::span<const double> a) { return std::sqrt(Dot(a, a)); }

// argmin ‖Σ x_k columns[k] − target‖ for linearly independent columns, by Householder's QR. Of
// dependent ones a diagonal entry of R vanishes; that x_k is set to zero.
Vector LeastSquares(std::vector<Vector> columns, Vector target) {
  const size_t n = columns.size();
  const size_t rows = target.size();
  for (size_t k = 0; k < std::min(n, rows); ++k) {
    Vector v(columns[k].begin() + k, columns[k].end());
    v[0] += std::copysign(Norm(v), v[0]);
    const double square = Dot(v, v);
    if (square == 0) continue;
    const auto reflect = [&](Vector& column) {
      const std::span<double> tail = std::span(column).subspan(k);
      const double factor = 2 * Dot(v, tail) / square;
      for (size_t i = 0; i < tail.size(); ++i) tail[i] -= factor * v[i];
    };
    for (size_t j = k; j < n; ++j) reflect(columns[j]);
    reflect(target);
  }
  Vector x(n, 0.0);
  for (size_t k = std::min(n, rows); k-- > 0;) {
    double value = target[k];
    for (size_t j = k + 1; j < n; ++j) value -= columns[j][k] * x[j];
    x[k] = columns[k][k] == 0 ? 0.0 : value / columns[k][k];
  }
  return x;
}

// Wolfe's algorithm: the corral is a set of affinely independent points whose positive weights give
// the point y of their affine hull that is nearest to `target`. The points should lie around the
// origin, since rounding is relative to their norms.
class Wolfe {
 public:
  Wolfe(const std::vector<Vector>& points, Vector target)
      : points_(points), target_(std::move(target)) {
    int64_t nearest = 0;
    double smallest = kInfinity;
    for (size_t j = 0; j < points.size(); ++j) {
      radius_ = std::max(radius_, Norm(points[j]));
      const double square = Dot(points[j], points[j]) / 2 - Dot(points[j], target_);
      if (square >= smallest) continue;
      smallest = square;
      nearest = static_cast<int64_t>(j);
    }
    corral_ = {nearest};
    weights_ = {1.0};
    Combine();
  }

  void Solve() {
    // Every round but the last comes nearer, so no corral comes twice; the limit is for rounding.
    const size_t limit = 50 * (points_.size() + target_.size() + 1);
    for (size_t round = 0; round < limit; ++round) {
      const int64_t entering = MostViolated();
      if (entering < 0) return;
      const Wolfe old = *this;
      corral_.push_back(entering);
      weights_.push_back(0.0);
      Shrink();
      if (IsNearerThan(old)) continue;
      corral_ = old.corral_;
      weights_ = old.weights_;
      Combine();
      return;
    }
  }

  Vector Weights() const {
    Vector all(points_.size(), 0.0);
    for (size_t i = 0; i < corral_.size(); ++i) all[corral_[i]] = weights_[i];
    return all;
  }

 private:
  void Combine() {
    y_.assign(target_.size(), 0.0);
    for (size_t i = 0; i < corral_.size(); ++i) {
      for (size_t d = 0; d < y_.size(); ++d) y_[d] += weights_[i] * points_[corral_[i]][d];
    }
    residual_ = target_;
    for (size_t d = 0; d < y_.size(); ++d) residual_[d] -= y_[d];
  }

  // ‖r‖² − ‖r_old‖² = −<y − y_old, r + r_old>, which does not cancel for a far target.
  bool IsNearerThan(const Wolfe& old) const {
    double gain = 0;
    for (size_t d = 0; d < y_.size(); ++d) {
      gain += (y_[d] - old.y_[d]) * (residual_[d] + old.residual_[d]);
    }
    return gain > 0;
  }

  // The point with the largest <r, p>, or -1 if none is above <r, y> by more than rounding.
  int64_t MostViolated() const {
    int64_t best = -1;
    double largest = Dot(residual_, y_) + 8 * kEpsilon * Norm(residual_) * radius_;
    for (size_t j = 0; j < points_.size(); ++j) {
      const double product = Dot(residual_, points_[j]);
      if (product <= largest) continue;
      largest = product;
      best = static_cast<int64_t>(j);
    }
    return best;
  }

  // Weights of the nearest point of the corral's affine hull.
  Vector AffineMinimum() const {
    const Vector& origin = points_[corral_[0]];
    std::vector<Vector> columns;
    for (size_t i = 1; i < corral_.size(); ++i) {
      Vector column = points_[corral_[i]];
      for (size_t d = 0; d < column.size(); ++d) column[d] -= origin[d];
      columns.push_back(std::move(column));
    }
    Vector target = target_;
    for (size_t d = 0; d < target.size(); ++d) target[d] -= origin[d];
    Vector weights = LeastSquares(std::move(columns), std::move(target));
    double rest = 1;
    for (double weight : weights) rest -= weight;
    weights.insert(weights.begin(), rest);
    return weights;
  }

  // Walks to the affine minimum, leaving points behind where their weight would become negative.
  void Shrink() {
    constexpr double kSmallestWeight = 1e-14;
    for (;;) {
      const Vector goal = AffineMinimum();
      if (*std::min_element(goal.begin(), goal.end()) > kSmallestWeight) {
        weights_ = goal;
        break;
      }
      double length = 1;
      for (size_t i = 0; i < goal.size(); ++i) {
        if (goal[i] > kSmallestWeight) continue;
        // Where it does not fall it is a new point at weight zero, which leaves at once.
        const double fall = weights_[i] - goal[i];
        length = std::min(length, fall > 0 ? weights_[i] / fall : 0.0);
      }
      size_t kept = 0;
      for (size_t i = 0; i < goal.size(); ++i) {
        const double weight = weights_[i] + length * (goal[i] - weights_[i]);
        if (weight <= kSmallestWeight && goal[i] <= kSmallestWeight) continue;
        corral_[kept] = corral_[i];
        weights_[kept++] = weight;
      }
      corral_.resize(kept);
      weights_.resize(kept);
      if (kept == 1) {
        weights_[0] = 1;
        break;
      }
    }
    Combine();
  }

  std::span<const Vector> points_;
  Vector target_;
  double radius_ = 0;
  std::vector<int64_t> corral_;
  Vector weights_;
  Vector y_;
  Vector residual_;
};

// Mean atom: with it at the origin rounding is relative to the hull's size.
Vector Centre(TensorView<const double, 2> atoms) {
  const auto [n, dim] = atoms.shape;
  Vector centre(dim, 0.0);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t d = 0; d < dim; ++d) centre[d] += atoms.row(j)[d] / static_cast<double>(n);
  }
  return centre;
}

Vector Difference(std::span<const double> a, std::span<const double> b) {
  Vector difference(a.begin(), a.end());
  for (size_t d = 0; d < a.size(); ++d) difference[d] -= b[d];
  return difference;
}

std::span<const double> Row(TensorView<const double, 2> atoms, int64_t j) {
  return {atoms.row(j), static_cast<size_t>(atoms.shape[1])};
}

// Smallest singular value of the columns, squared, by one-sided Jacobi rotations (Hestenes 1958).
double SmallestSquaredSingularValue(std::vector<Vector> columns) {
  for (int sweep = 0; sweep < 60; ++sweep) {
    double worst = 0;
    for (size_t i = 0; i < columns.size(); ++i) {
      for (size_t j = i + 1; j < columns.size(); ++j) {
        const double a = Dot(columns[i], columns[i]);
        const double b = Dot(columns[j], columns[j]);
        const double c = Dot(columns[i], columns[j]);
        if (std::abs(c) <= 4 * kEpsilon * std::sqrt(a * b)) continue;
        worst = std::max(worst, std::abs(c));
        const double zeta = (b - a) / (2 * c);
        const double tangent = std::copysign(1.0, zeta) / (std::abs(zeta) + std::hypot(1.0, zeta));
        const double cosine = 1 / std::hypot(1.0, tangent);
        for (size_t d = 0; d < columns[i].size(); ++d) {
          const double left = columns[i][d];
          columns[i][d] = cosine * (left - tangent * columns[j][d]);
          columns[j][d] = cosine * (tangent * left + columns[j][d]);
        }
      }
    }
    if (worst == 0) break;
  }
  double smallest = kInfinity;
  for (const Vector& column : columns) smallest = std::min(smallest, Dot(column, column));
  return smallest;
}

// The directions that sum to zero have the orthonormal basis (1, …, 1, −m, 0, …)/√(m(m+1)).
double TangentCurvature(TensorView<const double, 2> atoms, std::span<const int64_t> support) {
  const int64_t dim = atoms.shape[1];
  std::vector<Vector> columns;
  for (size_t m = 1; m < support.size(); ++m) {
    Vector column(dim, 0.0);
    for (int64_t d = 0; d < dim; ++d) {
      // Differences first, so that a far origin does not matter.
      for (size_t i = 0; i < m; ++i) {
        column[d] += atoms.row(support[i])[d] - atoms.row(support[m])[d];
      }
      column[d] /= std::sqrt(static_cast<double>(m * (m + 1)));
    }
    columns.push_back(std::move(column));
  }
  return SmallestSquaredSingularValue(std::move(columns));
}

// Other weights for the same y* exist exactly if some mixture of the exposed atoms off the support
// lies in the affine hull of the support: if zero lies in the hull of what is left of those atoms,
// taken relative to a support atom, after the support's directions are projected out.
bool WeightsUnique(TensorView<const double, 2> atoms, const HullProjection& projection,
                   double diameter) {
  const int64_t dim = atoms.shape[1];
  const auto relative = [&](int64_t j) {
    return Difference(Row(atoms, j), Row(atoms, projection.support[0]));
  };
  std::vector<Vector> basis;  // orthonormal; Gram-Schmidt, twice against rounding
  const auto project_out = [&](Vector x) {
    for (int pass = 0; pass < 2; ++pass) {
      for (const Vector& direction : basis) {
        const double product = Dot(direction, x);
        for (int64_t d = 0; d < dim; ++d) x[d] -= product * direction[d];
      }
    }
    return x;
  };
  for (size_t i = 1; i < projection.support.size(); ++i) {
    Vector x = project_out(relative(projection.support[i]));
    const double norm = Norm(x);
    if (norm == 0) continue;
    for (double& value : x) value /= norm;
    basis.push_back(std::move(x));
  }
  std::vector<Vector> rest;
  for (int64_t j : projection.exposed) {
    if (!std::binary_search(projection.support.begin(), projection.support.end(), j)) {
      rest.push_back(project_out(relative(j)));
    }
  }
  if (rest.empty()) return true;
  Wolfe wolfe(rest, Vector(dim, 0.0));
  wolfe.Solve();
  const Vector weights = wolfe.Weights();
  Vector nearest(dim, 0.0);
  for (size_t j = 0; j < rest.size(); ++j) {
    for (int64_t d = 0; d < dim; ++d) nearest[d] += weights[j] * rest[j][d];
  }
  return Norm(nearest) > 1e-9 * diameter;
}

double SmallestOutside(std::span<const double> values, std::span<const int64_t> set) {
  double smallest = kInfinity;
  for (size_t j = 0; j < values.size(); ++j) {
    if (std::binary_search(set.begin(), set.end(), static_cast<int64_t>(j))) continue;
    smallest = std::min(smallest, values[j]);
  }
  return smallest;
}

}  // namespace

HullProjection ProjectOntoHull(TensorView<const double, 2> atoms, std::span<const double> q) {
  const auto [n, dim] = atoms.shape;
  WINNOW_CHECK(n >= 1 && std::ssize(q) == dim, "{} atoms of {}, query of {}", n, dim, q.size());
  for (double value : atoms.span()) WINNOW_CHECK(std::isfinite(value));
  for (double value : q) WINNOW_CHECK(std::isfinite(value));
  const Vector centre = Centre(atoms);
  std::vector<Vector> points;
  for (int64_t j = 0; j < n; ++j) points.push_back(Difference(Row(atoms, j), centre));
  Wolfe wolfe(points, Difference(q, centre));
  wolfe.Solve();

  HullProjection result;
  result.weights = wolfe.Weights();
  result.readout.assign(dim, 0.0);
  for (int64_t j = 0; j < n; ++j) {
    if (result.weights[j] > 0) result.support.push_back(j);
    for (int64_t d = 0; d < dim; ++d) result.readout[d] += result.weights[j] * atoms.row(j)[d];
  }
  result.residual = Difference(q, result.readout);
  Vector scores;
  for (const Vector& point : points) scores.push_back(Dot(result.residual, point));
  const double max = *std::max_element(scores.begin(), scores.end());
  result.support_value = max + Dot(result.residual, centre);
  const double diameter = HullDiameter(atoms);
  const double zero = 1e-9 * diameter * std::max(diameter, Norm(result.residual));
  for (int64_t j = 0; j < n; ++j) {
    result.multipliers.push_back(max - scores[j]);
    result.frank_wolfe_gap += result.weights[j] * result.multipliers[j];
    if (result.multipliers[j] <= zero) result.exposed.push_back(j);
  }
  result.support_gap = SmallestOutside(result.multipliers, result.support);
  result.exposed_gap = SmallestOutside(result.multipliers, result.exposed);
  result.tangent_curvature = TangentCurvature(atoms, result.support);
  result.weights_unique = WeightsUnique(atoms, result, diameter);
  return result;
}

double HullDiameter(TensorView<const double, 2> atoms) {
  const auto [n, dim] = atoms.shape;
  double largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = i + 1; j < n; ++j) {
      double square = 0;
      for (int64_t d = 0; d < dim; ++d) {
        const double difference = atoms.row(i)[d] - atoms.row(j)[d];
        square += difference * difference;
      }
      largest = std::max(largest, square);
    }
  }
  return std::sqrt(largest);
}

double Entropy(std::span<const double> weights) {
  double entropy = 0;
  for (double weight : weights) {
    if (weight > 0) entropy -= weight * std::log(weight);
  }
  return entropy;
}

}  // namespace winnow::reference
