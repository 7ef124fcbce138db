#include "ops/reference_phi.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "core/check.h"

namespace winnow::reference {
namespace {

double Huber(double x, double delta) {
  const double size = std::abs(x);
  return size <= delta ? 0.5 * x * x : delta * (size - 0.5 * delta);
}

double LogSumExp(std::span<const double> x, double scale) {
  const double max = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double value : x) sum += std::exp(scale * (value - max));
  return scale * max + std::log(sum);
}

double KlDivergence(std::span<const double> teacher, std::span<const double> student,
                    double temperature) {
  const double scale = 1 / temperature;
  const double teacher_log_sum = LogSumExp(teacher, scale);
  const double student_log_sum = LogSumExp(student, scale);
  double kl = 0;
  for (size_t i = 0; i < teacher.size(); ++i) {
    const double log_p = scale * teacher[i] - teacher_log_sum;
    const double log_q = scale * student[i] - student_log_sum;
    const double p = std::exp(log_p);
    if (p > 0) kl += p * (log_p - log_q);
  }
  return kl * temperature * temperature;
}

}  // namespace

PhiLoss ComputePhiLoss(std::span<const double> teacher, std::span<const double> student,
                       const PhiLossWeights& weights) {
  WINNOW_CHECK(!teacher.empty() && teacher.size() == student.size() && weights.temperature > 0,
               "{} and {} logits", teacher.size(), student.size());
  const double max = *std::max_element(teacher.begin(), teacher.end());
  PhiLoss loss;
  double n_top = 0;
  double n_background = 0;
  for (size_t i = 0; i < teacher.size(); ++i) {
    const double r = teacher[i] - max;
    const double estimate = student[i] - max;
    if (r >= -weights.margin) {
      loss.top += Huber(estimate - r, weights.huber);
      ++n_top;
    } else {
      loss.false_positive += Huber(std::max(estimate + weights.margin, 0.0), weights.huber);
      ++n_background;
    }
  }
  loss.top /= std::max(n_top, 1.0);
  loss.false_positive /= std::max(n_background, 1.0);
  const double excess = LogSumExp(student, 1) - LogSumExp(teacher, 1);
  loss.partition = Huber(std::max(excess, 0.0), weights.huber);
  loss.kl = KlDivergence(teacher, student, weights.temperature);
  loss.auxiliary = weights.top * loss.top + weights.false_positive * loss.false_positive +
                   weights.partition * loss.partition;
  loss.total = weights.kl * loss.kl + (1 - weights.kl) * loss.auxiliary;
  return loss;
}

}  // namespace winnow::reference
