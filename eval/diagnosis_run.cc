#include "eval/diagnosis_run.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "attention/attention_probe.h"
#include "core/check.h"
#include "core/error.h"
#include "ops/kv_store.h"
#include "ops/page_planes.h"

namespace winnow {
namespace {

constexpr int kKeyBits = 4;  // of the copies, as in the arm residual=sketch
constexpr int kValueBits = 4;

// Keys and values of one KV head in double, [T, D] each, and their low-bit copies if asked for.
class HeadRows {
 public:
  void Load(ThreadPool* pool, const PagedKv& kv, int head, bool copies) {
    dim_ = kv.layout->head_dim;
    n_tokens_ = kv.n_tokens;
    for (std::vector<double>* rows : {&keys_, &values_}) rows->resize(n_tokens_ * dim_);
    if (copies) {
      for (std::vector<double>* rows : {&key_copies_, &value_copies_}) {
        rows->resize(n_tokens_ * dim_);
      }
    }
    const int64_t slots = kv.layout->slots;
    pool->ForEach((n_tokens_ + slots - 1) / slots,
                  [&](int64_t page, int /*thread*/) { LoadPage(kv, head, page, copies); });
  }

  TensorView<const double, 2> keys() const { return View(keys_); }
  TensorView<const double, 2> values() const { return View(values_); }
  TensorView<const double, 2> key_copies() const { return View(key_copies_); }
  TensorView<const double, 2> value_copies() const { return View(value_copies_); }

 private:
  TensorView<const double, 2> View(const std::vector<double>& rows) const {
    return {rows.data(), {n_tokens_, dim_}};
  }

  void LoadPage(const PagedKv& kv, int head, int64_t page, bool copies) {
    const PageLayout& layout = *kv.layout;
    const int64_t first = page * layout.slots;
    const int64_t end = std::min<int64_t>(first + layout.slots, n_tokens_);
    const bool full = end - first == layout.slots;
    std::vector<float> key(dim_);
    std::vector<float> value(dim_);
    for (int64_t token = first; token < end; ++token) {
      LoadKv(kv, head, token, key.data(), value.data());
      std::copy(key.begin(), key.end(), keys_.begin() + token * dim_);
      std::copy(value.begin(), value.end(), values_.begin() + token * dim_);
      if (!copies) continue;
      if (full) {  // a page that is not has no planes: its tokens stand for themselves
        const auto slot = static_cast<int>(token - first);
        LoadSketchRow(layout, kv.PlaneOf(KeySketchPlane(kKeyBits), page, head), kKeyBits,
                      /*keys=*/true, slot, key);
        LoadSketchRow(layout, kv.PlaneOf(ValueSketchPlane(kValueBits), page, head), kValueBits,
                      /*keys=*/false, slot, value);
      }
      std::copy(key.begin(), key.end(), key_copies_.begin() + token * dim_);
      std::copy(value.begin(), value.end(), value_copies_.begin() + token * dim_);
    }
  }

  int64_t dim_ = 0;
  int64_t n_tokens_ = 0;
  std::vector<double> keys_, values_, key_copies_, value_copies_;
};

class Diagnosis {
 public:
  Diagnosis(ThreadPool* pool, const ModelConfig& config, int64_t n_prompt, int64_t n_positions,
            const DiagnosisOptions& options, const DiagnosisHooks& hooks)
      : pool_(pool),
        config_(config),
        options_(options),
        hooks_(hooks),
        n_wanted_(n_positions),
        layer_index_(config.n_layers, -1),
        query_sums_(config.n_layers),
        phi_(options.maps, config.n_layers, config.kv_heads) {
    run_.n_prompt = n_prompt;
    run_.budget = FixedBudget(options, n_prompt);
    run_.query_heads = config.query_heads;
    for (int layer = 0; layer < config.n_layers; ++layer) {
      if (config.layers[layer].window > 0) {
        run_.local_layers.push_back(layer);
        continue;
      }
      layer_index_[layer] = static_cast<int>(run_.layers.size());
      run_.layers.push_back(layer);
    }
    if (options.Uses(Completion::kResa)) {
      probe_.on_prompt = [this](int layer, int64_t /*first*/, TensorView<const float, 3> q) {
        AddPromptQueries(layer, q);
      };
    }
    probe_.on_token = [this](int layer, std::span<const float> q, const PagedKv& kv) {
      if (layer_index_[layer] >= 0) DiagnoseLayer(layer, q, kv);
    };
  }

  const AttentionProbe* probe() const { return &probe_; }
  bool has_layers() const { return !run_.layers.empty(); }

  DiagnosisRun Finish(std::vector<TokenId> tokens) {
    run_.tokens = std::move(tokens);
    run_.n_positions = std::ssize(run_.tokens) - 1;
    WINNOW_CHECK(run_.n_positions >= 1);
    run_.figures.resize(run_.n_positions * FiguresPerPosition());
    return std::move(run_);
  }

 private:
  int64_t FiguresPerPosition() const { return std::ssize(run_.layers) * config_.query_heads; }

  void AddPromptQueries(int layer, TensorView<const float, 3> q) {
    std::vector<double>& sums = query_sums_[layer];
    sums.resize(q.shape[1] * q.shape[2]);
    for (int64_t t = 0; t < q.shape[0]; ++t) {
      for (size_t c = 0; c < sums.size(); ++c) sums[c] += q.row(t)[c];
    }
  }

  void DiagnoseLayer(int layer, std::span<const float> q, const PagedKv& kv) {
    const int64_t position = kv.n_tokens - run_.n_prompt - 1;
    WINNOW_CHECK(position >= 0);
    if (layer_index_[layer] == 0 && hooks_.on_position) hooks_.on_position(position, n_wanted_);
    run_.figures.resize((position + 1) * FiguresPerPosition());
    HeadFigures* figures = run_.figures.data() + position * FiguresPerPosition() +
                           static_cast<int64_t>(layer_index_[layer]) * config_.query_heads;
    for (int kv_head = 0; kv_head < config_.kv_heads; ++kv_head) {
      // One KV head at a time: a whole layer in double takes much memory.
      rows_.Load(pool_, kv, kv_head, options_.Uses(Completion::kSketch));
      const std::vector<double> key_mean = PromptKeyMean();
      const bool with_phi = options_.Uses(Completion::kPhi) && !phi_.Abstains(layer, kv.n_tokens);
      TensorView<const float, 2> phi_keys;
      if (with_phi) {
        phi_keys = phi_.PromptKeys(pool_, layer, kv_head, rows_.keys().Slice(0, run_.n_prompt));
      }
      pool_->ForEach(config_.group_size(), [&](int64_t r, int /*thread*/) {
        const int64_t head = kv_head * config_.group_size() + r;
        const ResaMeans means{PromptQueryMean(layer, head), key_mean};
        const std::span<const float> raw = q.subspan(head * config_.head_dim, config_.head_dim);
        const std::vector<double> query = Scaled(raw);
        std::vector<double> phi_query;
        if (with_phi) phi_query = phi_.Query(layer, static_cast<int>(head), raw);
        figures[head] = DiagnoseHead({.scaled_query = query,
                                      .keys = rows_.keys(),
                                      .values = rows_.values(),
                                      .key_copies = rows_.key_copies(),
                                      .value_copies = rows_.value_copies(),
                                      .means = &means,
                                      .phi = {phi_query, phi_keys},
                                      .page_tokens = kv.layout->slots,
                                      .n_generated = position + 1,
                                      .seed = SampleSeed(position, layer, head)},
                                     options_);
      });
    }
  }

  std::vector<double> Scaled(std::span<const float> query) const {
    std::vector<double> scaled(query.begin(), query.end());
    for (double& x : scaled) x *= static_cast<double>(config_.attention_scale);
    return scaled;
  }

  // Empty unless `resa` was asked for.
  std::vector<double> PromptQueryMean(int layer, int64_t head) const {
    if (query_sums_[layer].empty()) return {};
    const auto begin = query_sums_[layer].begin() + head * config_.head_dim;
    std::vector<double> mean(begin, begin + config_.head_dim);
    const double factor =
        static_cast<double>(config_.attention_scale) / static_cast<double>(run_.n_prompt);
    for (double& x : mean) x *= factor;
    return mean;
  }
  std::vector<double> PromptKeyMean() const {
    std::vector<double> mean(config_.head_dim, 0.0);
    for (int64_t t = 0; t < run_.n_prompt; ++t) {
      for (size_t c = 0; c < mean.size(); ++c) mean[c] += rows_.keys().row(t)[c];
    }
    for (double& x : mean) x /= static_cast<double>(run_.n_prompt);
    return mean;
  }

  uint64_t SampleSeed(int64_t position, int layer, int64_t head) const {
    const int64_t row = (position * config_.n_layers + layer) * config_.query_heads + head;
    return Rng(options_.seed).Next() + static_cast<uint64_t>(row);
  }

  ThreadPool* pool_;
  const ModelConfig& config_;
  const DiagnosisOptions& options_;
  const DiagnosisHooks& hooks_;
  int64_t n_wanted_;
  std::vector<int> layer_index_;                 // [L] among the global ones; -1: local
  std::vector<std::vector<double>> query_sums_;  // [L][H·D] of the prompt, unscaled
  PhiFeatures phi_;
  HeadRows rows_;
  AttentionProbe probe_;
  DiagnosisRun run_;
};

}  // namespace

std::string DiagnosisArm(const DiagnosisOptions& options) {
  return options.Uses(Completion::kSketch) ? "select=sketch,bits=4,residual=sketch,bits=4"
                                           : "dense";
}

const HeadFigures& DiagnosisRun::At(int64_t position, size_t layer_index, int head) const {
  return figures[(position * std::ssize(layers) + static_cast<int64_t>(layer_index)) * query_heads +
                 head];
}

std::vector<HeadFigures> DiagnosisRun::HeadMeans() const {
  std::vector<HeadFigures> means;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    for (int head = 0; head < query_heads; ++head) {
      std::vector<HeadFigures> samples;
      for (int64_t p = 0; p < n_positions; ++p) samples.push_back(At(p, layer, head));
      means.push_back(MeanFigures(samples));
    }
  }
  return means;
}

std::optional<DiagnosisRun> RunDiagnosis(Engine* engine, ThreadPool* pool,
                                         const ModelConfig& config,
                                         const std::vector<TokenId>& prompt, int64_t n_positions,
                                         const DiagnosisOptions& options,
                                         const DiagnosisHooks& hooks) {
  WINNOW_CHECK(n_positions >= 1 && (options.maps != nullptr || !options.Uses(Completion::kPhi)));
  Diagnosis diagnosis(pool, config, std::ssize(prompt), n_positions, options, hooks);
  if (!diagnosis.has_layers()) {
    Throw(ErrorKind::kInput, "every layer of the model is local: there is nothing to choose");
  }
  Request request;
  request.tokens = prompt;
  request.arm = "dense";
  request.ignore_end_tokens = true;
  request.max_new_tokens = n_positions + 1;  // the first comes from the prompt, the last stays out
  request.on_prefill = hooks.on_prefill;
  request.probe = diagnosis.probe();
  const RequestId id = engine->Submit(std::move(request));
  std::optional<RequestResult> result;
  while (!(result = engine->TakeResult(id)).has_value()) {
    if (hooks.should_stop && hooks.should_stop()) engine->Cancel(id);
    engine->Step();
  }
  if (result->finish_reason == FinishReason::kCancelled) return std::nullopt;
  if (result->finish_reason == FinishReason::kFailed) {
    // An internal error stays one.
    if (!result->error_kind.has_value()) throw std::runtime_error(result->error);
    Throw(*result->error_kind, "{}", result->error);
  }
  // Submit refuses a prompt that leaves no room for a token: there is a step.
  return diagnosis.Finish(std::move(result->tokens));
}

}  // namespace winnow
