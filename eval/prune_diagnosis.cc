#include "eval/prune_diagnosis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/check.h"
#include "core/error.h"
#include "eval/prompt_attention.h"
#include "policy/prefill/page_quota.h"
#include "policy/prefill/stability.h"

namespace winnow {
namespace {

// Γ of (26): 0 takes nothing from the probe (σ is then the largest document mass), and beyond these
// Γ·q alone is past 1 for every removal that is worth while.
constexpr std::array<double, 9> kGammas = {0, 0.5, 1, 2, 4, 8, 16, 32, 64};

// The largest over rows, by head; each block of rows has its own until they are merged.
struct HeadPeaks {
  double eta = 0;
  double ratio = 0;
  std::array<double, kGammas.size()> excess{};

  void Merge(const HeadPeaks& other) {
    eta = std::max(eta, other.eta);
    ratio = std::max(ratio, other.ratio);
    for (size_t i = 0; i < excess.size(); ++i) excess[i] = std::max(excess[i], other.excess[i]);
  }
};

struct States {
  std::vector<int32_t> positions;
  std::vector<float> hidden;  // [T, E]
  int64_t width = 0;

  int64_t n_rows() const { return std::ssize(positions); }
  TensorView<float, 2> View() { return {hidden.data(), {n_rows(), width}}; }
  // The rows `rows` of these states.
  States Take(std::span<const int64_t> rows) const {
    States taken;
    taken.width = width;
    for (int64_t row : rows) {
      taken.positions.push_back(positions[row]);
      const auto at = hidden.begin() + row * width;
      taken.hidden.insert(taken.hidden.end(), at, at + width);
    }
    return taken;
  }
};

double RowDifference(const float* a, const float* b, int64_t width) {
  double squares = 0;
  for (int64_t c = 0; c < width; ++c) {
    const double off = static_cast<double>(a[c]) - (b == nullptr ? 0 : static_cast<double>(b[c]));
    squares += off * off;
  }
  return std::sqrt(squares);
}

class PruneRun {
 public:
  PruneRun(Backbone* backbone, ThreadPool* pool, const Prompt& prompt,
           const PruneDiagnosisOptions& options)
      : backbone_(backbone),
        config_(backbone->config()),
        pool_(pool),
        prompt_(prompt),
        options_(options) {
    out_.layer = options.layer > 0 ? options.layer : std::max(1, config_.n_layers / 3);
    if (out_.layer >= config_.n_layers) {
      Throw(ErrorKind::kUsage, "layer {}: the model has {}, and one above must be left", out_.layer,
            config_.n_layers);
    }
    out_.n_tokens = std::ssize(prompt.tokens);
    if (out_.n_tokens > kMaxPruneDiagnosisTokens) {
      Throw(ErrorKind::kInput,
            "the prompt has {} tokens: this diagnosis is quadratic and takes at most {}",
            out_.n_tokens, kMaxPruneDiagnosisTokens);
    }
    if (out_.n_tokens > config_.context_length) {
      Throw(ErrorKind::kInput, "the prompt has {} tokens, the model's context {}", out_.n_tokens,
            config_.context_length);
    }
    ListChunks();
    CheckRemoval();
    full_.width = config_.hidden;
    full_.positions.resize(out_.n_tokens);
    std::iota(full_.positions.begin(), full_.positions.end(), 0);
    full_.hidden.resize(out_.n_tokens * full_.width);
    for (int64_t begin = 0; begin < out_.n_tokens; begin += backbone->max_tokens()) {
      const int64_t end = std::min(out_.n_tokens, begin + backbone->max_tokens());
      backbone->Embed(std::span(prompt.tokens).subspan(begin, end - begin),
                      full_.View().Slice(begin, end));
    }
    attention_.Resize(out_.n_tokens * config_.query_heads * config_.head_dim);
  }

  // `layer` counts from 1.
  void RunLayer(int layer) {
    rows_.Project(backbone_, layer - 1, full_.View(), full_.positions);
    if (layer <= out_.layer) {
      rows_.Attend(pool_, Attention(out_.n_tokens));
      if (layer == out_.layer) {
        Pool();
        Choose();
      }
      FinishLayer(backbone_, layer - 1, Attention(out_.n_tokens), full_.View());
      if (layer == out_.layer) pruned_ = full_.Take(retained_);
      return;
    }
    RunDeepLayer(layer);
  }

  PruneDiagnosis Finish() {
    States last;
    last.width = full_.width;
    for (States* states : {&full_, &pruned_}) {
      last.hidden.insert(last.hidden.end(), states->hidden.end() - last.width,
                         states->hidden.end());
      last.positions.push_back(states->positions.back());
    }
    const int64_t vocabulary = config_.vocabulary;
    std::vector<float> logits(2 * vocabulary);
    backbone_->Logits(last.View(), {logits.data(), {2, vocabulary}});
    const std::span<const float> full(logits.data(), vocabulary);
    const std::span<const float> pruned(logits.data() + vocabulary, vocabulary);
    for (int64_t i = 0; i < vocabulary; ++i) {
      const double off = static_cast<double>(full[i]) - static_cast<double>(pruned[i]);
      out_.logit_difference = std::max(out_.logit_difference, std::abs(off));
    }
    out_.margin = DecisionMargin(std::vector<double>(full.begin(), full.end()));
    out_.full_token = Best(full);
    out_.pruned_token = Best(pruned);
    return std::move(out_);
  }

 private:
  static int32_t Best(std::span<const float> logits) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }

  TensorView<float, 3> Attention(int64_t n_rows) {
    return {attention_.data(), {n_rows, config_.query_heads, config_.head_dim}};
  }

  void ListChunks() {
    in_document_.assign(out_.n_tokens, 0);
    for (const Span& span : prompt_.spans) {
      if (span.kind != SpanKind::kChunk) continue;
      out_.chunks.push_back({.document = prompt_.documents[span.document].id,
                             .begin = span.begin,
                             .end = span.end,
                             .candidate = span.begin >= options_.sinks});
      if (!out_.chunks.back().candidate) continue;
      std::fill(in_document_.begin() + span.begin, in_document_.begin() + span.end, 1);
      out_.n_document_tokens += span.end - span.begin;
    }
    if (out_.n_document_tokens == 0) {
      Throw(ErrorKind::kInput, "the prompt has no chunk of a document that could be removed");
    }
    first_observer_ = out_.n_tokens;
    while (first_observer_ > 0 && first_observer_ > out_.n_tokens - options_.observers &&
           first_observer_ > out_.chunks.back().end) {
      --first_observer_;
    }
    out_.n_observers = out_.n_tokens - first_observer_;
    if (out_.n_observers == 0) {
      Throw(ErrorKind::kInput, "no token follows the last document: nothing observes it");
    }
  }

  void CheckRemoval() const {
    for (int64_t number : options_.remove) {
      if (number < 1 || number > std::ssize(out_.chunks)) {
        Throw(ErrorKind::kUsage, "there is no chunk {}: the prompt has {}", number,
              out_.chunks.size());
      }
      if (!out_.chunks[number - 1].candidate) {
        Throw(ErrorKind::kUsage, "chunk {} holds one of the first {} tokens, which stay", number,
              options_.sinks);
      }
    }
  }

  // μ of (5) from the observers' rows of this layer.
  void Pool() {
    const int64_t n_heads = config_.query_heads;
    std::vector<double> mean(n_heads * out_.n_tokens, 0.0);
    std::vector<double> row_collisions(n_heads, 0.0);
    pool_->ForEach(n_heads, [&](int64_t head, int /*thread*/) {
      std::vector<double> weights(out_.n_tokens);
      for (int64_t row = first_observer_; row < out_.n_tokens; ++row) {
        rows_.Weights(static_cast<int>(head), row, weights);
        for (int64_t j = 0; j < out_.n_tokens; ++j) {
          mean[head * out_.n_tokens + j] += weights[j] / static_cast<double>(out_.n_observers);
          row_collisions[head] += weights[j] * weights[j];
        }
      }
    });
    for (double x : row_collisions) {
      out_.row_collision += x / static_cast<double>(n_heads * out_.n_observers);
    }
    for (double x : mean) out_.mean_collision += x * x / static_cast<double>(n_heads);
    pooled_.assign(out_.n_tokens, 0.0);
    const int64_t group = config_.group_size();
    for (int64_t g = 0; g < config_.kv_heads; ++g) {
      const TensorView<const double, 2> rows(mean.data() + g * group * out_.n_tokens,
                                             {group, out_.n_tokens});
      std::vector<double> weights(group);
      PoolingWeights(rows, options_.sinks, options_.pooling, weights);
      for (int64_t h = 0; h < group; ++h) {
        for (int64_t j = 0; j < out_.n_tokens; ++j) {
          pooled_[j] += weights[h] * rows.row(h)[j] / config_.kv_heads;
        }
      }
    }
    for (PrunedChunk& chunk : out_.chunks) {
      const std::span<const double> p =
          std::span(pooled_).subspan(chunk.begin, chunk.end - chunk.begin);
      chunk.mass = std::accumulate(p.begin(), p.end(), 0.0);
      const int64_t first_page = options_.page_tokens - chunk.begin % options_.page_tokens;
      const PartitionScores scores = ScorePartition(p, first_page, options_.page_tokens);
      chunk.page_gap = scores.chunk - scores.mean_page;
      if (chunk.candidate) out_.document_mass += chunk.mass;
    }
  }

  void Choose() {
    for (int64_t number : options_.remove) out_.chunks[number - 1].removed = true;
    if (options_.remove.empty()) ChooseWeakest();
    removed_.assign(out_.n_tokens, 0);
    for (const PrunedChunk& chunk : out_.chunks) {
      if (!chunk.removed) continue;
      std::fill(removed_.begin() + chunk.begin, removed_.begin() + chunk.end, 1);
      out_.n_removed += chunk.end - chunk.begin;
      out_.removed_mass += chunk.mass;
    }
    row_of_.assign(out_.n_tokens, -1);
    for (int64_t t = 0; t < out_.n_tokens; ++t) {
      if (removed_[t] != 0) continue;
      row_of_[t] = std::ssize(retained_);
      retained_.push_back(t);
    }
  }

  // By mass a token, so that a short chunk is not weak for its length.
  void ChooseWeakest() {
    std::vector<size_t> order;
    for (size_t i = 0; i < out_.chunks.size(); ++i) {
      if (out_.chunks[i].candidate) order.push_back(i);
    }
    const auto density = [&](size_t i) {
      const PrunedChunk& chunk = out_.chunks[i];
      return chunk.mass / static_cast<double>(chunk.end - chunk.begin);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return density(a) < density(b); });
    const auto kept = static_cast<int64_t>(
        std::floor(options_.keep * static_cast<double>(out_.n_document_tokens)));
    int64_t saved = 0;
    for (size_t i : order) {
      if (saved >= out_.n_document_tokens - kept) break;
      out_.chunks[i].removed = true;
      saved += out_.chunks[i].end - out_.chunks[i].begin;
    }
  }

  void RunDeepLayer(int layer) {
    PrunedLayer figures;
    figures.layer = layer;
    figures.window = config_.layers[layer - 1].window;
    States restricted = full_.Take(retained_);  // X|_R, to become F_{l,R}(X|_R)
    AlignedBuffer<float> without(restricted.n_rows() * config_.query_heads * config_.head_dim);
    AttendBothWays(&figures, without.data());
    FinishLayer(backbone_, layer - 1, Attention(out_.n_tokens), full_.View());
    FinishLayer(backbone_, layer - 1,
                {without.data(), {restricted.n_rows(), config_.query_heads, config_.head_dim}},
                restricted.View());
    rows_.Project(backbone_, layer - 1, pruned_.View(), pruned_.positions);
    rows_.Attend(pool_, Attention(pruned_.n_rows()));
    FinishLayer(backbone_, layer - 1, Attention(pruned_.n_rows()), pruned_.View());
    for (size_t i = 0; i < retained_.size(); ++i) {
      const float* full = full_.View().row(retained_[i]);
      const auto row = static_cast<int64_t>(i);
      const auto keep = [&](double& largest, const float* other) {
        largest = std::max(largest, RowDifference(full, other, full_.width));
      };
      keep(figures.defect, restricted.View().row(row));
      keep(figures.delta, pruned_.View().row(row));
      keep(figures.state_norm, nullptr);
    }
    out_.layers.push_back(std::move(figures));
  }

  // Attention of the full trajectory into attention_; of its retained rows without what is removed
  // into `without` [T', H, D]; and every figure of the difference.
  void AttendBothWays(PrunedLayer* figures, float* without) {
    const int64_t n_heads = config_.query_heads;
    const int64_t dim = config_.head_dim;
    std::vector<HeadPeaks> peaks(n_heads * out_.n_tokens);
    std::vector<double> squares(n_heads * out_.n_tokens, 0.0);
    rows_.ForEach(pool_,
                  [&](int head, int64_t row, int64_t first, std::span<const double> weights) {
                    std::vector<double> kept(dim, 0.0);
                    std::vector<double> gone(dim, 0.0);
                    double mass_kept = 0;
                    double mass_gone = 0;
                    for (int64_t j = first; j <= row; ++j) {
                      const std::span<const float> value = rows_.Value(head, j);
                      std::vector<double>& sum = removed_[j] != 0 ? gone : kept;
                      (removed_[j] != 0 ? mass_gone : mass_kept) += weights[j];
                      for (int64_t c = 0; c < dim; ++c)
                        sum[c] += weights[j] * static_cast<double>(value[c]);
                    }
                    float* out = Attention(out_.n_tokens).row(row) + head * dim;
                    for (int64_t c = 0; c < dim; ++c)
                      out[c] = static_cast<float>(kept[c] + gone[c]);
                    if (row_of_[row] < 0) return;
                    float* reduced = without + (row_of_[row] * n_heads + head) * dim;
                    for (int64_t c = 0; c < dim; ++c) {
                      const double renormalised = kept[c] / mass_kept;  // it sees itself: not zero
                      reduced[c] = static_cast<float>(renormalised);
                      const double off = kept[c] + gone[c] - renormalised;
                      squares[head * out_.n_tokens + row] += off * off;
                    }
                    peaks[head * out_.n_tokens + row] = Peaks(first, row, weights, mass_gone);
                  });
    for (int64_t row : retained_) {
      double all = 0;
      for (int64_t h = 0; h < n_heads; ++h) all += squares[h * out_.n_tokens + row];
      figures->deletion = std::max(figures->deletion, std::sqrt(all));
    }
    double bound = 0;
    for (int64_t h = 0; h < n_heads; ++h) {
      HeadPeaks merged;
      for (int64_t row : retained_) merged.Merge(peaks[h * out_.n_tokens + row]);
      figures->heads.push_back(HeadFigures(static_cast<int>(h), merged));
      bound += std::pow(figures->heads.back().value_observed * merged.eta, 2);
    }
    figures->deletion_bound = 2 * std::sqrt(bound);
  }

  HeadPeaks Peaks(int64_t first, int64_t row, std::span<const double> weights,
                  double mass_gone) const {
    HeadPeaks peaks;
    peaks.eta = mass_gone;
    for (int64_t j = first; j <= row; ++j) {
      if (in_document_[j] == 0 || weights[j] == 0) continue;
      peaks.ratio = std::max(peaks.ratio, weights[j] / pooled_[j]);
      for (size_t i = 0; i < kGammas.size(); ++i) {
        peaks.excess[i] += std::max(weights[j] - kGammas[i] * pooled_[j], 0.0);
      }
    }
    return peaks;
  }

  PrunedHead HeadFigures(int head, const HeadPeaks& peaks) const {
    PrunedHead figures;
    figures.eta = peaks.eta;
    figures.density_ratio = peaks.ratio;
    figures.value_observed = rows_.LargestValue(head);
    figures.transferred = std::numeric_limits<double>::infinity();
    const auto offer = [&](double gamma, double sigma) {
      const double transferred = TransferredMass(gamma, out_.removed_mass, sigma);
      if (transferred >= figures.transferred) return;
      figures.gamma = gamma;
      figures.sigma = sigma;
      figures.transferred = transferred;
    };
    for (size_t i = 0; i < kGammas.size(); ++i) offer(kGammas[i], peaks.excess[i]);
    if (std::isfinite(peaks.ratio)) offer(peaks.ratio, 0);
    return figures;
  }

  Backbone* backbone_;
  const ModelConfig& config_;
  ThreadPool* pool_;
  const Prompt& prompt_;
  const PruneDiagnosisOptions& options_;
  int64_t first_observer_ = 0;
  std::vector<uint8_t> in_document_;  // [T] of candidates
  std::vector<uint8_t> removed_;      // [T]
  std::vector<int64_t> retained_;     // rows, ascending
  std::vector<int64_t> row_of_;       // [T] among the retained, or -1
  std::vector<double> pooled_;        // μ [T]
  States full_, pruned_;
  LayerRows rows_;
  AlignedBuffer<float> attention_;
  PruneDiagnosis out_;
};

}  // namespace

void PruneDiagnosisOptions::Validate() const {
  if (layer < 0) Throw(ErrorKind::kUsage, "layer {}: layers count from 1", layer);
  if (!(keep >= 0 && keep <= 1)) {
    Throw(ErrorKind::kUsage, "keep {}: it must be from 0 to 1", keep);
  }
  if (observers < 1) Throw(ErrorKind::kUsage, "{} observers: at least 1 is needed", observers);
}

std::optional<PruneDiagnosis> DiagnosePruning(Backbone* backbone, ThreadPool* pool,
                                              const Prompt& prompt,
                                              const PruneDiagnosisOptions& options,
                                              const PruneDiagnosisHooks& hooks) {
  PruneRun run(backbone, pool, prompt, options);
  const int n_layers = backbone->config().n_layers;
  for (int layer = 1; layer <= n_layers; ++layer) {
    if (hooks.should_stop && hooks.should_stop()) return std::nullopt;
    if (hooks.on_layer) hooks.on_layer(layer, n_layers);
    run.RunLayer(layer);
  }
  return run.Finish();
}

}  // namespace winnow
