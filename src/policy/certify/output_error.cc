#include "policy/certify/output_error.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/kv_store.h"

namespace winnow {
namespace {

// The larger one; NaN if one is.
double LargerOf(double a, double b) { return std::isnan(a) || a > b ? a : b; }

// Values of one full page: mean, and how far they and the stored mean are from it.
PageSummaryView ValuesOf(const PagedKv& kv, int64_t page, int kv_head, std::span<double> mean) {
  const auto* stored = reinterpret_cast<const float*>(kv.PlaneOf(Plane::kValueMean, page, kv_head));
  const auto* spread =
      reinterpret_cast<const float*>(kv.PlaneOf(Plane::kValueSpread, page, kv_head));
  std::copy_n(stored, mean.size(), mean.begin());
  PageSummaryView view{.n = kv.layout->slots, .value_mean = mean};
  view.value_radius = spread[0];
  view.value_deviation = spread[1];
  // The mean was rounded to the nearest float, after a sum in double; 1e-40: also of the smallest.
  const double norm = Norm(mean);
  const double of_sum = 4 * view.n * std::numeric_limits<double>::epsilon();
  view.value_mean_error = 0x1p-24 * norm + of_sum * (norm + view.value_radius) + 1e-40;
  return view;
}

// log of (e^lo + e^hi)/2: the guess that is off least at worst, if anything bounds it.
double LogMiddle(double lo, double hi) {
  if (std::isinf(hi)) return lo;
  return hi == lo ? hi : hi + std::log1p(std::exp(lo - hi)) - std::log(2.0);
}

}  // namespace

// Returns the largest ‖v‖ of the layer's KV head, from above; NaN if a value is.
double OutputErrors::LoadValues(const LayerStep& step, const ReadHead& head, Scratch* scratch) {
  const PagedKv& kv = step.queries[head.query].kv;
  const PageLayout& layout = *kv.layout;
  const auto dim = static_cast<size_t>(layout.head_dim);
  const int64_t n_full = kv.n_tokens / layout.slots;
  scratch->means.resize(head.unread.size() * dim);
  scratch->pages.resize(head.unread.size());
  scratch->out.resize(dim);
  scratch->read_out.resize(dim);
  double largest = 0;
  size_t i = 0;
  for (int64_t page = 0; page < n_full; ++page) {
    const bool unread = i < head.unread.size() && head.unread[i] == page;
    const std::span<double> mean =
        unread ? std::span(scratch->means).subspan(i * dim, dim) : std::span(scratch->out);
    const PageSummaryView view = ValuesOf(kv, page, head.kv_head, mean);
    largest = LargerOf(Norm(mean) + view.value_radius, largest);
    if (unread) scratch->pages[i++] = view;
  }
  scratch->token.resize(2 * dim);
  float* const key = scratch->token.data();
  float* const value = key + dim;
  for (int64_t t = n_full * layout.slots; t < kv.n_tokens; ++t) {
    LoadKv(kv, head.kv_head, t, key, value);
    std::copy_n(value, dim, scratch->out.begin());
    largest = LargerOf(Norm(scratch->out), largest);
  }
  return largest * (1 + 1e-12);
}

OutputError OutputErrors::BoundHead(const OutputHead& head, int r, double largest,
                                    Scratch* scratch) {
  const auto dim = static_cast<int64_t>(scratch->out.size());
  std::copy_n(head.read_out + r * dim, dim, scratch->read_out.begin());
  std::copy_n(head.out + r * dim, dim, scratch->out.begin());
  const ReadHead& read_head = *head.read;
  const PageBounds& bounds = *read_head.bounds;
  const double off = bounds.log_mass_error[r];
  const ReadPart read{.log_mass = read_head.log_mass[r],
                      .out = scratch->read_out,
                      .log_mass_error = off,
                      .out_error = largest * DecodeOutputError(read_head.tokens_read, off)};
  const size_t n_unread = read_head.unread.size();
  scratch->parts.clear();
  bool finite = !std::isnan(largest);
  for (size_t p = 0; p < n_unread; ++p) {
    const PageBound& mass = bounds.pages[r * n_unread + p];
    const PageSummaryView& page = scratch->pages[p];
    finite = finite && !std::isnan(mass.log_lo + mass.log_hi);
    scratch->parts.push_back(
        {.log_mass = {mass.log_lo, mass.log_hi, {StatementKind::kDeterministic}},
         .log_estimate = LogMiddle(mass.log_lo, mass.log_hi),
         .value_mean = page.value_mean,
         .value_error = BoundValueError(mass.weights, page),
         .value_radius = page.value_radius + page.value_mean_error});
  }
  OutputError error{.norm = Norm(scratch->out)};
  if (!finite) {
    error.bound = std::numeric_limits<double>::infinity();
    error.statement = {StatementKind::kDeterministic, Standing::kNotFinite};
    return error;
  }
  const ErrorBound bound =
      BoundOutput(read, scratch->parts, head.shares[r], scratch->out, scratch->bounds);
  error.bound = bound.bound;
  error.statement = bound.statement;
  return error;
}

void OutputErrors::Bound(const LayerStep& step, std::span<const OutputHead> heads,
                         std::span<OutputError> errors, int64_t* bytes_read) {
  if (heads.empty()) return;
  if (scratch_.size() < heads.size()) scratch_.resize(heads.size());
  const PageLayout& layout = *step.queries[0].kv.layout;
  const int group = step.params.query_heads / layout.kv_heads;
  step.pool->ForEach(std::ssize(heads), [&](int64_t h, int /*thread*/) {
    const std::span<OutputError> of_head = errors.subspan(h * group, group);
    std::fill(of_head.begin(), of_head.end(), OutputError{});
    if (heads[h].read->unread.empty()) return;
    const double largest = LoadValues(step, *heads[h].read, &scratch_[h]);
    for (int r = 0; r < group; ++r) of_head[r] = BoundHead(heads[h], r, largest, &scratch_[h]);
  });
  const int64_t of_page = (layout.padded_dim + 16) * static_cast<int64_t>(sizeof(float));
  for (const OutputHead& head : heads) {
    if (head.read->unread.empty()) continue;
    *bytes_read += step.queries[head.read->query].kv.n_tokens / layout.slots * of_page;
  }
}

}  // namespace winnow
