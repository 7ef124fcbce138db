#include "policy/certify/refine.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace winnow {
namespace {

// The read part so far, which owns its output.
class Reading {
 public:
  explicit Reading(const ReadPart& read) : part_(read), out_(read.out.begin(), read.out.end()) {}

  ReadPart part() const {
    ReadPart part = part_;
    part.out = out_;
    return part;
  }

  void Merge(const ReadPart& other) {
    WINNOW_CHECK(other.out.size() == out_.size(), "{} and {} channels", other.out.size(),
                 out_.size());
    const double top = std::max(part_.log_mass, other.log_mass);
    if (top == -std::numeric_limits<double>::infinity()) return;
    const double mine = std::exp(part_.log_mass - top);
    const double theirs = std::exp(other.log_mass - top);
    const double weight = theirs / (mine + theirs);
    double distance = 0;
    for (size_t c = 0; c < out_.size(); ++c) {
      const double difference = other.out[c] - out_[c];
      distance += difference * difference;
      out_[c] += weight * difference;
    }
    // Masses that are off by a factor of e^{±δ} each, so that their ratio is off by e^{±2δ}, move
    // the weight by at most tanh(δ/2).
    part_.log_mass_error = std::max(part_.log_mass_error, other.log_mass_error);
    part_.out_error = (1 - weight) * part_.out_error + weight * other.out_error +
                      std::tanh(part_.log_mass_error / 2) * std::sqrt(distance);
    part_.log_mass = top + std::log(mine + theirs);
  }

 private:
  ReadPart part_;
  std::vector<double> out_;
};

ErrorBound Bound(RefineGoal goal, const ReadPart& read, std::span<const UnreadPart> parts,
                 std::span<double> out, BoundScratch& scratch, std::span<double> contributions) {
  if (goal == RefineGoal::kDropped) {
    std::copy(read.out.begin(), read.out.end(), out.begin());
    return BoundDropped(read, parts, scratch, contributions);
  }
  CompleteOutput(read, parts, out);
  return BoundCompleted(read, parts, out, scratch, contributions);
}

}  // namespace

RefineResult Refine(const RefineOptions& options, const ReadPart& read,
                    std::span<const UnreadPart> parts, FunctionRef<ReadPart(int64_t part)> open,
                    std::span<double> out) {
  WINNOW_CHECK(out.size() == read.out.size(), "{} and {} channels", out.size(), read.out.size());
  Reading reading(read);
  std::vector<UnreadPart> left(parts.begin(), parts.end());
  std::vector<int64_t> indices(parts.size());
  for (size_t p = 0; p < indices.size(); ++p) indices[p] = static_cast<int64_t>(p);
  std::vector<double> contributions;
  BoundScratch scratch;
  RefineResult result;
  while (true) {
    contributions.resize(left.size());
    const ErrorBound bound = Bound(options.goal, reading.part(), left, out, scratch, contributions);
    result.bound = bound.bound;
    result.statement = bound.statement;
    result.met = bound.statement.IsBound() && bound.bound <= options.tolerance;
    if (result.met || left.empty() || std::ssize(result.opened) >= options.max_opened ||
        bound.statement.standing == Standing::kNotFinite) {
      return result;
    }
    const auto largest = std::max_element(contributions.begin(), contributions.end());
    const auto at = largest - contributions.begin();
    reading.Merge(open(indices[at]));
    result.opened.push_back(indices[at]);
    left.erase(left.begin() + at);
    indices.erase(indices.begin() + at);
  }
}

}  // namespace winnow
