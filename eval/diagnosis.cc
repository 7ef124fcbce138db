#include "eval/diagnosis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>

#include "core/check.h"
#include "core/error.h"
#include "core/rng.h"
#include "policy/certify/leakage.h"
#include "policy/certify/mgf_bounds.h"
#include "policy/nearest_name.h"
#include "policy/residual/diagnostics.h"
#include "policy/residual/partial_attention.h"

namespace winnow {
namespace {

struct NamedCompletion {
  std::string_view name;
  Completion completion;
};
constexpr std::array<NamedCompletion, 7> kCompletions = {{{"none", Completion::kNone},
                                                          {"centroid", Completion::kCentroid},
                                                          {"cumulant", Completion::kCumulant},
                                                          {"sketch", Completion::kSketch},
                                                          {"resa", Completion::kResa},
                                                          {"sample", Completion::kSample},
                                                          {"phi", Completion::kPhi}}};

// Moments by page of some of its tokens; pages of which there are none have a count of 0.
class RowMoments {
 public:
  RowMoments(const HeadView& head, std::span<const int64_t> rows)
      : dim_(head.keys.shape[1]),
        n_pages_((head.keys.shape[0] + head.page_tokens - 1) / head.page_tokens),
        counts_(n_pages_, 0),
        key_mean_(n_pages_ * dim_, 0.0),
        key_variance_(n_pages_ * dim_, 0.0),
        value_mean_(n_pages_ * dim_, 0.0) {
    for (int64_t row : rows) {
      const int64_t page = row / head.page_tokens;
      ++counts_[page];
      Add(head.keys.row(row), page, key_mean_);
      Add(head.values.row(row), page, value_mean_);
    }
    DivideByCount(key_mean_);
    DivideByCount(value_mean_);
    for (int64_t row : rows) {
      const int64_t page = row / head.page_tokens;
      for (int64_t c = 0; c < dim_; ++c) {
        const double x = head.keys.row(row)[c] - key_mean_[page * dim_ + c];
        key_variance_[page * dim_ + c] += x * x;
      }
    }
    DivideByCount(key_variance_);
    for (int64_t page = 0; page < n_pages_; ++page) {
      if (counts_[page] > 0) pages_.push_back(page);
    }
  }

  PageMoments View() const {
    const std::array<int64_t, 2> shape{n_pages_, dim_};
    return {.key_mean = {key_mean_.data(), shape},
            .key_variance = {key_variance_.data(), shape},
            .value_mean = {value_mean_.data(), shape},
            .counts = counts_};
  }
  // Those that have tokens.
  std::span<const int64_t> pages() const { return pages_; }

  // Of each of `pages`: where its log mass lies by mean, deviation and box (certify/mgf_bounds.h).
  std::vector<LogMassInterval> Intervals(const HeadView& head,
                                         std::span<const int64_t> rows) const {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    std::vector<double> low(n_pages_ * dim_, kInfinity);
    std::vector<double> high(n_pages_ * dim_, -kInfinity);
    for (int64_t row : rows) {
      const int64_t first = row / head.page_tokens * dim_;
      for (int64_t c = 0; c < dim_; ++c) {
        low[first + c] = std::min(low[first + c], head.keys.row(row)[c]);
        high[first + c] = std::max(high[first + c], head.keys.row(row)[c]);
      }
    }
    std::vector<double> deviation = key_variance_;
    for (double& x : deviation) x = std::sqrt(x);
    std::vector<LogMassInterval> intervals;
    for (int64_t page : pages_) {
      const auto of_page = [&](const std::vector<double>& values) {
        return std::span(values).subspan(page * dim_, dim_);
      };
      const LogitShape shape =
          ShapeOfLogits(head.scaled_query, {.n = counts_[page],
                                            .mean = of_page(key_mean_),
                                            .box_lo = of_page(low),
                                            .box_hi = of_page(high),
                                            .deviation_lo = of_page(deviation),
                                            .deviation_hi = of_page(deviation)});
      const LogInterval interval = BoundLogMass(shape);
      intervals.push_back({interval.lo, interval.hi});
    }
    return intervals;
  }

 private:
  void Add(const double* row, int64_t page, std::vector<double>& sums) const {
    for (int64_t c = 0; c < dim_; ++c) sums[page * dim_ + c] += row[c];
  }
  void DivideByCount(std::vector<double>& sums) const {
    for (int64_t page = 0; page < n_pages_; ++page) {
      if (counts_[page] == 0) continue;
      const auto n = static_cast<double>(counts_[page]);
      for (int64_t c = 0; c < dim_; ++c) sums[page * dim_ + c] /= n;
    }
  }

  int64_t dim_;
  int64_t n_pages_;
  std::vector<int64_t> counts_;
  std::vector<double> key_mean_, key_variance_, value_mean_;  // [pages, D]
  std::vector<int64_t> pages_;
};

std::vector<int64_t> AllRows(int64_t n) {
  std::vector<int64_t> rows(n);
  std::iota(rows.begin(), rows.end(), int64_t{0});
  return rows;
}

std::vector<double> At(std::span<const double> values, std::span<const int64_t> rows) {
  std::vector<double> chosen;
  chosen.reserve(rows.size());
  for (int64_t row : rows) chosen.push_back(values[row]);
  return chosen;
}

std::vector<int64_t> Union(std::span<const int64_t> a, std::span<const int64_t> b) {
  std::vector<int64_t> both;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

class HeadDiagnosis {
 public:
  HeadDiagnosis(const HeadView& head, const DiagnosisOptions& options)
      : head_(head),
        options_(options),
        n_tokens_(head.keys.shape[0]),
        split_(SplitPositions(n_tokens_, head.n_generated, options.anchors)) {
    const std::vector<int64_t> all = AllRows(n_tokens_);
    scores_ = RowScores(head.scaled_query, head.keys, all);
    truth_ = MixRows(scores_, head.values, all);
    middle_scores_ = At(scores_, split_.middle);
    middle_ = MixRows(middle_scores_, head.values, split_.middle);
    if (options.Uses(Completion::kSketch)) {
      copy_scores_ = RowScores(head.scaled_query, head.key_copies, all);
    }
    if (options.Uses(Completion::kResa)) {
      mean_scores_ = RowScores(head.means->query, head.keys, all);
    }
    if (options.Uses(Completion::kPhi)) phi_.emplace(head.phi, head.values, split_.middle);
  }

  HeadFigures Run() const {
    HeadFigures figures;
    const MiddleEntropy entropy = ComputeMiddleEntropy(middle_scores_);
    figures.entropy_nats = entropy.nats;
    figures.entropy = entropy.normalised;
    figures.middle_share = std::exp(middle_.log_mass - truth_.log_mass);
    figures.score_gap = TopTwoGap(scores_);
    figures.recovery = MassRecovery(middle_scores_, options_.ks);
    const int64_t budget = FixedBudget(options_, n_tokens_ - head_.n_generated);
    const Retrieval fixed = RetrieveTop(split_.middle, middle_scores_, budget);
    AddFixed(fixed, figures);
    for (int64_t k : options_.ks) AddCurvePoint(k, figures);
    figures.top = LeakageOff(Union(split_.anchors, fixed.retrieved));
    figures.routed = LeakageOff(Union(split_.anchors, Route()));
    return figures;
  }

 private:
  PartialAttention Exact(const Retrieval& retrieval) const {
    const std::vector<int64_t> rows = Union(split_.anchors, retrieval.retrieved);
    return MixRows(At(scores_, rows), head_.values, rows);
  }

  PartialAttention Estimate(Completion completion, std::span<const int64_t> rows) const {
    switch (completion) {
      case Completion::kNone:
        return NoAttention(head_.values.shape[1]);
      case Completion::kCentroid: {
        const RowMoments moments(head_, rows);
        return CentroidEstimate(moments.View(), head_.scaled_query, moments.pages());
      }
      case Completion::kCumulant: {
        const RowMoments moments(head_, rows);
        return CumulantEstimate(moments.View(), head_.scaled_query, moments.pages(),
                                moments.Intervals(head_, rows))
            .state;
      }
      case Completion::kSketch:
        return MixRows(At(copy_scores_, rows), head_.value_copies, rows);
      case Completion::kResa:
        return ResaEstimate(*head_.means, head_.scaled_query,
                            MixRows(At(mean_scores_, rows), head_.values, rows));
      case Completion::kSample: {
        Rng rng(head_.seed);
        const SampledStratum stratum{
            .drawn = DrawWithoutReplacement(rows, options_.sample_tokens, rng),
            .size = std::ssize(rows)};
        return SampleEstimate(head_.scaled_query, head_.keys, head_.values, {&stratum, 1}).state;
      }
      case Completion::kPhi:
        return phi_->Estimate(rows);
    }
    WINNOW_CHECK(false, "completion {}", static_cast<int>(completion));
    return {};
  }

  double Error(const PartialAttention& state) const {
    return RelativeL1Error(state.out, truth_.out);
  }

  void AddFixed(const Retrieval& fixed, HeadFigures& figures) const {
    const PartialAttention exact = Exact(fixed);
    const PartialAttention rest =
        MixRows(At(scores_, fixed.residual), head_.values, fixed.residual);
    figures.exact_no_subtraction = Error(Complete(exact, middle_).state);
    for (const Completion completion : options_.completions) {
      const PartialAttention estimate = Estimate(completion, fixed.residual);
      const CompletedAttention completed = Complete(exact, estimate);
      CompletionFigures figure;
      figure.error = Error(completed.state);
      figure.error_no_subtraction =
          Error(Complete(exact, Estimate(completion, split_.middle)).state);
      figure.log_partition_error = LogPartitionError(estimate.log_mass, rest.log_mass);
      figure.residual_share = completed.residual_share;
      figures.completions.push_back(figure);
    }
  }

  void AddCurvePoint(int64_t k, HeadFigures& figures) const {
    const Retrieval retrieval = RetrieveTop(split_.middle, middle_scores_, k);
    const PartialAttention exact = Exact(retrieval);
    for (size_t i = 0; i < options_.completions.size(); ++i) {
      const PartialAttention estimate = Estimate(options_.completions[i], retrieval.residual);
      figures.completions[i].error_at.push_back(Error(Complete(exact, estimate).state));
    }
  }

  // Tokens, ascending.
  std::vector<int64_t> Route() const {
    const RowMoments moments(head_, AllRows(n_tokens_));
    const PageMoments view = moments.View();
    std::vector<double> page_scores(view.counts.size());
    ScorePages(PageScore::kMean, {.mean = view.key_mean, .counts = view.counts}, head_.scaled_query,
               page_scores);
    return RouteTokens(page_scores, head_.keys, head_.scaled_query, head_.page_tokens,
                       options_.routing)
        .tokens;
  }

  LeakageFigures LeakageOff(std::span<const int64_t> rows) const {
    LeakageFigures figures;
    figures.tokens = static_cast<double>(rows.size());
    if (rows.empty()) {  // nothing was read
      figures = {0, 1, std::nan(""), std::nan("")};
      return figures;
    }
    const auto in_set = std::make_unique<bool[]>(n_tokens_);
    for (int64_t row : rows) in_set[row] = true;
    const SoftmaxLeakage leakage =
        BoundSoftmaxLeakage(scores_, {in_set.get(), static_cast<size_t>(n_tokens_)}, 1.0);
    figures.leak = leakage.leak;
    figures.tight = leakage.tight;
    figures.paper_form = leakage.paper_form;
    return figures;
  }

  const HeadView& head_;
  const DiagnosisOptions& options_;
  int64_t n_tokens_;
  PositionSplit split_;
  std::vector<double> scores_;         // [T]
  std::vector<double> copy_scores_;    // [T] q·k̂
  std::vector<double> mean_scores_;    // [T] μ_Q·k
  std::vector<double> middle_scores_;  // [middle]
  std::optional<PhiCompletion> phi_;
  PartialAttention truth_;  // of all tokens
  PartialAttention middle_;
};

template <typename T>
void RequireDistinct(const std::vector<T>& values, std::string_view what) {
  for (auto value = values.begin(); value != values.end(); ++value) {
    if (std::find(values.begin(), value, *value) != value) {
      Throw(ErrorKind::kUsage, "one {} is given twice", what);
    }
  }
}

}  // namespace

std::string_view CompletionName(Completion completion) {
  for (const NamedCompletion& known : kCompletions) {
    if (known.completion == completion) return known.name;
  }
  WINNOW_CHECK(false, "completion {}", static_cast<int>(completion));
  return "";
}

std::vector<std::string> CompletionNames() {
  std::vector<std::string> names;
  names.reserve(kCompletions.size());
  for (const NamedCompletion& known : kCompletions) names.emplace_back(known.name);
  return names;
}

Completion ParseCompletion(std::string_view name) {
  for (const NamedCompletion& known : kCompletions) {
    if (known.name == name) return known.completion;
  }
  Throw(ErrorKind::kUsage, "{}", UnknownName("residual", name, CompletionNames()));
}

bool DiagnosisOptions::Uses(Completion completion) const {
  return std::find(completions.begin(), completions.end(), completion) != completions.end();
}

void DiagnosisOptions::Validate() const {
  ExactBudget(1, fraction, anchors);  // throws for what it cannot take
  if (fraction > 1) Throw(ErrorKind::kUsage, "a share of {} of the tokens is above 1", fraction);
  if (ks.empty() || ks.front() < 0 || !std::is_sorted(ks.begin(), ks.end())) {
    Throw(ErrorKind::kUsage, "the numbers K must be at least one, none negative, ascending");
  }
  RequireDistinct(ks, "number K");
  RequireDistinct(completions, "residual");
  WINNOW_CHECK(!completions.empty() && completions.front() == Completion::kNone);
  if (sample_tokens < 1 || routing.pages < 1 || routing.tokens < 1) {
    Throw(ErrorKind::kUsage,
          "a sample of {} tokens, routing to {} pages and {} tokens: each at "
          "least 1",
          sample_tokens, routing.pages, routing.tokens);
  }
}

std::vector<double*> HeadFigures::Numbers() {
  std::vector<double*> numbers = {&entropy_nats, &entropy, &middle_share, &score_gap,
                                  &exact_no_subtraction};
  for (double& share : recovery) numbers.push_back(&share);
  for (CompletionFigures& c : completions) {
    for (double* x :
         {&c.error, &c.error_no_subtraction, &c.log_partition_error, &c.residual_share}) {
      numbers.push_back(x);
    }
    for (double& error : c.error_at) numbers.push_back(&error);
  }
  for (LeakageFigures* l : {&top, &routed}) {
    for (double* x : {&l->tokens, &l->leak, &l->tight, &l->paper_form}) numbers.push_back(x);
  }
  return numbers;
}

int64_t FixedBudget(const DiagnosisOptions& options, int64_t n_prompt) {
  return ExactBudget(n_prompt, options.fraction, options.anchors);
}

HeadFigures DiagnoseHead(const HeadView& head, const DiagnosisOptions& options) {
  WINNOW_CHECK(head.keys.shape[0] >= 1 && head.values.shape[0] == head.keys.shape[0] &&
               head.page_tokens >= 1);
  WINNOW_CHECK(
      !options.Uses(Completion::kSketch) ||
      (head.key_copies.shape == head.keys.shape && head.value_copies.shape == head.values.shape));
  WINNOW_CHECK(!options.Uses(Completion::kResa) || head.means != nullptr);
  return HeadDiagnosis(head, options).Run();
}

HeadFigures MeanFigures(std::span<const HeadFigures> figures) {
  WINNOW_CHECK(!figures.empty());
  HeadFigures mean = figures[0];
  const std::vector<double*> sums = mean.Numbers();
  std::vector<int64_t> counts(sums.size(), 0);
  for (double* sum : sums) *sum = 0;
  for (HeadFigures sample : figures) {
    const std::vector<double*> numbers = sample.Numbers();
    WINNOW_CHECK(numbers.size() == sums.size());
    for (size_t i = 0; i < sums.size(); ++i) {
      if (!std::isfinite(*numbers[i])) continue;
      *sums[i] += *numbers[i];
      ++counts[i];
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    *sums[i] = counts[i] == 0 ? std::nan("") : *sums[i] / static_cast<double>(counts[i]);
  }
  return mean;
}

}  // namespace winnow
