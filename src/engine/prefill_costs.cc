#include "engine/prefill_costs.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "attention/observers.h"
#include "attention/prefill.h"
#include "core/account.h"
#include "core/check.h"
#include "core/median.h"
#include "kv/page_pool.h"
#include "kv/sequence_kv.h"
#include "ops/observer_rows.h"
#include "policy/arm.h"

namespace winnow {
namespace {

constexpr int64_t kLeastContext = 64;
constexpr int64_t kLargestDepth = 8192;
constexpr int64_t kDepths = 4;
constexpr int kSlots = kDefaultPageSlots;
constexpr int kLeastRounds = 2;
constexpr int kMostRounds = 15;
constexpr int kCopies = 4;       // a round
constexpr double kEnough = 1.5;  // seconds after which no further round begins
constexpr double kPatience = 5;  // seconds after which pieces that disagree are not timed again

// Tolerances that anything meets, so that all of a layer's work is done.
constexpr char kArm[] = "prefill=entroprefill,uncalibrated=1,v=0,eps=0.95,eps_audit=0.9";

// The middle one of the global layers below the last, or nothing.
std::optional<int> LayerToTime(const ModelConfig& config) {
  std::vector<int> global;
  for (int layer = 0; layer + 1 < config.n_layers; ++layer) {
    if (config.layers[layer].window == 0) global.push_back(layer);
  }
  return global.empty() ? std::nullopt : std::optional(global[global.size() / 2]);
}

class PrefillStopwatch {
 public:
  PrefillStopwatch(Backbone* backbone, ThreadPool* pool, DType kv_dtype, int64_t chunk, int layer)
      : backbone_(backbone),
        pool_(pool),
        config_(backbone->config()),
        layer_(layer),
        chunk_(chunk),
        depth_(std::min(kLargestDepth, config_.context_length) - chunk),
        pages_({config_.kv_heads, kSlots, config_.head_dim, kv_dtype},
               depth_ / kSlots + 2 * (chunk / kSlots + 2)),
        deep_(&pages_, config_.n_layers),
        prefill_(backbone, pool),
        positions_(depth_ + chunk),
        embedded_(chunk * config_.hidden),
        hidden_(chunk * config_.hidden) {
    std::iota(positions_.begin(), positions_.end(), 0);
    std::vector<int32_t> tokens(chunk);
    for (int64_t i = 0; i < chunk; ++i) {
      tokens[i] = static_cast<int32_t>(i * 7919 % config_.vocabulary);
    }
    backbone->Embed(tokens, {embedded_.data(), {chunk, config_.hidden}});
    Fill();
  }

  // One round: every piece once.
  void Round() {
    const ScopedTimer timer(seconds_);
    for (int64_t i = 0; i + 1 < kDepths; ++i) {
      const int64_t depth = depth_ * i / (kDepths - 1) / kSlots * kSlots;
      SequenceKv kv = Behind(depth);
      pieces_.push_back({depth, depth + chunk_, Run(&kv, depth, 0, nullptr)});
    }
    Deepest();
    SequenceKv kv = Behind(0);
    last_.push_back(Run(&kv, 0, chunk_, nullptr) / static_cast<double>(chunk_));
    for (int i = 0; i < kCopies; ++i) Copy();
    ++n_rounds_;
  }
  bool HasEnough() const {
    return n_rounds_ >= kMostRounds || (n_rounds_ >= kLeastRounds && seconds_ > kEnough);
  }
  void Forget() {
    pieces_.clear();
    n_rounds_ = 0;
    seconds_ = 0;
  }
  std::optional<PrefillCosts> Costs() const {
    const std::optional<LayerCost> layer = FitLayerCost(pieces_);
    if (!layer.has_value()) return std::nullopt;
    return PrefillCosts{.layer = *layer,
                        .last_linear = LowerMedian(last_),
                        .score = LowerMedian(score_),
                        .remove = LowerMedian(remove_),
                        .copy = LowerMedian(copy_)};
  }

 private:
  // `deep_` gets the first chunk's keys and values over and over.
  void Fill() {
    SequenceKv first(&pages_, config_.n_layers);
    Run(&first, 0, 0, nullptr);
    const std::span<const int32_t> positions(positions_);
    WINNOW_CHECK(deep_.Append(layer_, positions.first(depth_ / kSlots * kSlots)));
    const int64_t n_sources = std::max<int64_t>(1, chunk_ / kSlots);
    const PagedKv source = first.View(layer_);
    for (int64_t page = 0; page < depth_ / kSlots; ++page) {
      std::memcpy(deep_.WritablePage(layer_, page * kSlots),
                  pages_.data(source.pages[page % n_sources]), pages_.layout().page_bytes);
    }
  }
  // One chunk behind what the layer holds; rows before `first_output` get no attention.
  double Run(SequenceKv* kv, int64_t depth, int64_t first_output, ObserverQueries* observers) {
    std::copy_n(embedded_.data(), chunk_ * config_.hidden, hidden_.data());
    double seconds = 0;
    Timed(seconds, [&] {
      prefill_.Run({.kv = kv,
                    .layer = layer_,
                    .positions = std::span(positions_).subspan(depth, chunk_),
                    .hidden = {hidden_.data(), {chunk_, config_.hidden}},
                    .first_output = first_output,
                    .observers = observers},
                   &stages_, &account_);
    });
    return seconds;
  }
  // The first `depth` tokens, whole pages.
  SequenceKv Behind(int64_t depth) const {
    SequenceKv kv = deep_.Fork();
    kv.Truncate(layer_, depth);
    return kv;
  }

  // Chunks of all but the last chunk of prefill, whose last tokens observe.
  PruneProblem Problem(int64_t n_before) const {
    PruneProblem problem{.query_heads = config_.query_heads, .kv_heads = config_.kv_heads};
    const int64_t n_tokens = n_before + chunk_;
    const int64_t n_chunks = std::max<int64_t>(2, n_before / PruneParams{}.chunk_tokens);
    problem.chunk_of.assign(n_tokens, -1);
    problem.chunk_tokens.assign(n_chunks, n_before / n_chunks);
    for (int64_t i = 0; i < n_before / n_chunks * n_chunks; ++i) {
      problem.chunk_of[i] = static_cast<int32_t>(i / (n_before / n_chunks));
    }
    for (int64_t i = n_tokens - std::min(PruneParams{}.observers, chunk_); i < n_tokens; ++i) {
      problem.observers.push_back(i);
    }
    return problem;
  }
  // The deepest piece, and its scores.
  void Deepest() {
    const int64_t depth = depth_ / kSlots * kSlots;
    const PruneProblem problem = Problem(depth);
    ObserverQueries queries(problem.observers, config_.query_heads, config_.head_dim);
    SequenceKv kv = Behind(depth);
    pieces_.push_back({depth, depth + chunk_, Run(&kv, depth, 0, &queries)});
    Score(problem, queries, kv.View(layer_));
  }
  // What Engine::Impl::ObserveLayer does.
  void Score(const PruneProblem& problem, const ObserverQueries& queries, const PagedKv& kv) {
    const int64_t n_observers = problem.n_observers();
    const int64_t n_rows = config_.query_heads * n_observers;
    const std::vector<int64_t> begin(n_observers, 0);
    std::vector<int64_t> end;
    for (const int64_t token : problem.observers) end.push_back(token + 1);
    const auto cells = static_cast<double>(n_observers * problem.n_tokens());
    const std::vector<uint8_t> removed = HalfOf(problem.n_chunks());

    double score = 0;
    Timed(score, [&] {
      mean_attention_.Resize(config_.query_heads * problem.n_tokens());
      chunk_mass_.Resize(n_rows * problem.n_chunks());
      output_norms_.Resize(2 * n_rows);
    });
    const ObserverRows rows{
        .mean_attention = {mean_attention_.data(), {config_.query_heads, problem.n_tokens()}},
        .chunk_mass = {chunk_mass_.data(), {n_rows, problem.n_chunks()}}};
    const ObserverRowsParams params{.q = queries.queries(),
                                    .kv = kv,
                                    .begin = begin,
                                    .end = end,
                                    .scale = config_.attention_scale,
                                    .chunk_of = problem.chunk_of,
                                    .n_chunks = problem.n_chunks()};
    Timed(score, [&] {
      const std::unique_ptr<PruneRun> run = NewRun(problem);
      ReadObserverRows(*pool_, params, rows, workspace_);
      run->Observe(layer_ + 1, {rows.mean_attention, rows.chunk_mass});
    });
    double remove = 0;
    Timed(remove, [&] {
      MeasureRemoval(
          *pool_, params, removed,
          {.norm = {output_norms_.data(), {config_.query_heads, n_observers}},
           .change = {output_norms_.data() + n_rows, {config_.query_heads, n_observers}}});
    });
    score_.push_back(score / cells);
    remove_.push_back(remove / cells);
  }
  static std::vector<uint8_t> HalfOf(int64_t n_chunks) {
    std::vector<uint8_t> removed(n_chunks, 0);
    std::fill_n(removed.begin(), n_chunks / 2, 1);
    return removed;
  }
  std::unique_ptr<PruneRun> NewRun(PruneProblem problem) const {
    const std::unique_ptr<PrefillPolicy> policy = MakePrefillPolicy(kArm);
    policy->params.layers = {layer_ + 1};
    const PruneModel model{.n_layers = config_.n_layers,
                           .query_heads = config_.query_heads,
                           .kv_heads = config_.kv_heads,
                           .global_layers = {layer_ + 1}};
    return policy->NewRun(std::move(problem), UncalibratedProfile(policy->params, model));
  }
  // To memory that was never touched, as parking does.
  void Copy() {
    const int64_t n = std::min<int64_t>(depth_ + chunk_, 1024) * config_.hidden;
    AlignedBuffer<float> from(n);
    std::fill_n(from.data(), n, 1.0F);
    double seconds = 0;
    Timed(seconds, [&] {
      AlignedBuffer<float> to(n);
      std::copy_n(from.data(), n, to.data());
    });
    copy_.push_back(seconds / static_cast<double>(n * sizeof(float)));
  }

  Backbone* backbone_;
  ThreadPool* pool_;
  const ModelConfig& config_;
  int layer_;
  int64_t chunk_;
  int64_t depth_;
  PagePool pages_;
  SequenceKv deep_;
  PrefillPipeline prefill_;
  std::vector<int32_t> positions_;
  AlignedBuffer<float> embedded_;  // [chunk, E]
  AlignedBuffer<float> hidden_;
  StageSeconds stages_;
  AttentionAccount account_;
  ObserverRowsWorkspace workspace_;
  AlignedBuffer<float> mean_attention_;
  AlignedBuffer<double> chunk_mass_;
  AlignedBuffer<double> output_norms_;
  std::vector<TimedRows> pieces_;
  std::vector<double> last_;    // seconds a token
  std::vector<double> score_;   // seconds an observer and token
  std::vector<double> remove_;  // likewise
  std::vector<double> copy_;    // seconds a byte
  int n_rounds_ = 0;
  double seconds_ = 0;
};

}  // namespace

std::optional<PrefillCosts> MeasurePrefillCosts(Backbone* backbone, ThreadPool* pool,
                                                DType kv_dtype, int64_t prefill_chunk) {
  const ModelConfig& config = backbone->config();
  const std::optional<int> layer = LayerToTime(config);
  if (!layer.has_value() || config.context_length < kLeastContext) return std::nullopt;
  // A short context still has room for different depths.
  const int64_t chunk = std::min(
      {prefill_chunk, backbone->max_tokens(), config.context_length / 4, kLargestDepth / 4});
  PrefillStopwatch stopwatch(backbone, pool, kv_dtype, chunk, *layer);
  std::optional<PrefillCosts> costs;
  double seconds = 0;
  do {
    const ScopedTimer timer(seconds);
    stopwatch.Forget();
    while (!stopwatch.HasEnough()) stopwatch.Round();
    costs = stopwatch.Costs();
  } while (!costs.has_value() && seconds < kPatience);
  return costs;
}

}  // namespace winnow
