#include "bench/bench_side.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/byte_size.h"
#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"

namespace winnow {
namespace {

using Clock = std::chrono::steady_clock;

// Enough to touch every weight and start every thread.
constexpr int64_t kWarmUpTokens = 512;

class WinnowSide : public BenchSide {
 public:
  WinnowSide(Engine* engine, WinnowSideOptions options)
      : engine_(engine), options_(std::move(options)) {}

  BenchRow Describe() const override {
    BenchRow row;
    row.engine = "winnow";
    row.arm = options_.arm;
    row.n_threads = options_.n_threads;
    return row;
  }

  bool TakesPart(const BenchTest& /*test*/) const override { return true; }

  void Prepare(const BenchTest& test) override {
    engine_->ClearPrefixes();
    if (test.n_prompt > 0) {
      Request request = MakeRequest(test.prompts[0], std::min(test.n_prompt, kWarmUpTokens), 1);
      RunToEnd(std::move(request));
      return;
    }
    // Leaves the prompts in resident pages, so that repetitions need not compute them again.
    for (const std::vector<int32_t>& prompt : test.prompts) {
      RunToEnd(MakeRequest(prompt, test.prompt_tokens(), 1));
    }
    Decode(test, /*steps=*/1);
  }

  BenchSample Measure(const BenchTest& test) override {
    BenchSample sample = test.n_prompt > 0 ? MeasurePrefill(test) : MeasureDecode(test);
    if (options_.report_peak_rss) sample.peak_rss_bytes = static_cast<int64_t>(PeakRssBytes());
    return sample;
  }

  void Finish() override { engine_->ClearPrefixes(); }

 private:
  struct DecodeRun {
    double seconds = 0;
    PhaseLedger ledger;
  };

  Request MakeRequest(const std::vector<int32_t>& prompt, int64_t n_prompt,
                      int64_t max_new_tokens) const {
    Request request;
    request.tokens.assign(prompt.begin(), prompt.begin() + n_prompt);
    request.max_new_tokens = max_new_tokens;
    request.ignore_end_tokens = true;
    request.arm = options_.arm;
    return request;
  }

  static void CheckResult(const RequestResult& result) {
    if (result.finish_reason != FinishReason::kFailed) return;
    const std::string message = "the request failed: " + result.error;
    if (!result.error_kind.has_value()) throw std::runtime_error(message);
    throw Error(*result.error_kind, message);
  }

  RequestResult RunToEnd(Request request) {
    RequestResult result = engine_->Run(std::move(request));
    CheckResult(result);
    return result;
  }

  static void AddBytes(const PhaseLedger& ledger, BenchSample* sample) {
    const int64_t tokens = std::max<int64_t>(ledger.tokens, 1);
    sample->bytes_read = ledger.attention.bytes_read / tokens;
    sample->bytes_dense = ledger.attention.bytes_dense / tokens;
  }

  BenchSample MeasurePrefill(const BenchTest& test) {
    engine_->ClearPrefixes();
    const RequestResult result = RunToEnd(MakeRequest(test.prompts[0], test.n_prompt, 1));
    BenchSample sample;
    sample.tokens_per_second = static_cast<double>(test.n_prompt) / result.ttft_seconds;
    sample.ttft_seconds = result.ttft_seconds;
    AddBytes(result.ledger.prefill, &sample);
    return sample;
  }

  BenchSample MeasureDecode(const BenchTest& test) {
    const DecodeRun run = Decode(test, test.n_gen);
    BenchSample sample;
    sample.tokens_per_second = static_cast<double>(test.n_gen * test.n_batch) / run.seconds;
    AddBytes(run.ledger, &sample);
    return sample;
  }

  // Times `steps` steps in which all sequences of the test decode, from the depth on.
  DecodeRun Decode(const BenchTest& test, int64_t steps) {
    std::vector<int64_t> generated(test.n_batch, 0);
    std::vector<RequestId> ids;
    for (int64_t b = 0; b < test.n_batch; ++b) {
      Request request = MakeRequest(test.prompts[b], test.prompt_tokens(), MaxNewTokens(test));
      request.on_logits = [&count = generated[b]](int64_t index, std::span<const float>) {
        count = index + 1;
      };
      ids.push_back(engine_->Submit(std::move(request)));
    }
    const auto sum = [&generated] {
      return std::accumulate(generated.begin(), generated.end(), int64_t{0});
    };
    // Those that have read their prompt wait for the others, so that all begin at the depth.
    while (std::find(generated.begin(), generated.end(), 0) != generated.end()) {
      CheckGoesOn(engine_->StepPrefill(), ids);
    }
    const int64_t before = sum();
    const auto start = Clock::now();
    for (int64_t step = 0; step < steps; ++step) CheckGoesOn(engine_->Step(), ids);
    DecodeRun run;
    run.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    const int64_t made = sum() - before;
    run.ledger = CancelAll(ids);
    if (made != steps * test.n_batch) {
      Throw(ErrorKind::kInput,
            "a sequence ended after {} of {} tokens: {} tokens and {} new ones exceed the context "
            "of {}",
            made, steps * test.n_batch, test.n_depth, test.n_gen, engine_->context_tokens());
    }
    return run;
  }

  // If a step had nothing to do, sequences failed or do not fit the KV memory together.
  void CheckGoesOn(bool stepped, const std::vector<RequestId>& ids) {
    if (stepped) return;
    CancelAll(ids);
    Throw(ErrorKind::kResource,
          "{} sequences do not fit {} of KV memory together: lower -b, -d or -n, or raise "
          "--kv-memory",
          ids.size(), FormatBytes(engine_->pool_bytes()));
  }

  PhaseLedger CancelAll(const std::vector<RequestId>& ids) {
    for (const RequestId id : ids) engine_->Cancel(id);
    engine_->Step();
    PhaseLedger ledger;
    for (const RequestId id : ids) {
      const std::optional<RequestResult> result = engine_->TakeResult(id);
      WINNOW_CHECK(result.has_value(), "request {} outlived its cancellation", id);
      CheckResult(*result);
      ledger.attention += result->ledger.decode.attention;
      ledger.tokens += result->ledger.decode.tokens;
    }
    return ledger;
  }

  Engine* engine_;
  WinnowSideOptions options_;
};

class PeerSide : public BenchSide {
 public:
  PeerSide(PeerModel* model, int n_threads, PeerOptions options)
      : model_(model), n_threads_(n_threads), options_(options) {}

  BenchRow Describe() const override {
    BenchRow row;
    row.engine = "llama.cpp";
    row.arm = "dense";
    row.n_threads = n_threads_;
    row.flash_attn = options_.attention == PeerAttention::kFlash;
    row.kv_unified = options_.kv_unified;
    return row;
  }

  bool TakesPart(const BenchTest& test) const override {
    return test.n_batch > 1 || !options_.kv_unified;
  }

  void Prepare(const BenchTest& test) override {
    options_.context_tokens = test.prompt_tokens() + test.n_gen;
    options_.sequences = static_cast<int>(test.n_batch);
    context_ = std::make_unique<PeerLlama>(model_, options_);
    if (test.n_prompt > 0) {
      const auto n = static_cast<size_t>(std::min(test.n_prompt, kWarmUpTokens));
      context_->Prefill(0, std::span(test.prompts[0]).first(n));
      return;
    }
    context_->Decode(FillToDepth(test), 1);
  }

  BenchSample Measure(const BenchTest& test) override {
    BenchSample sample;
    if (test.n_prompt > 0) {
      context_->Clear();
      const double seconds = context_->Prefill(0, test.prompts[0]).seconds;
      sample.tokens_per_second = static_cast<double>(test.n_prompt) / seconds;
      sample.ttft_seconds = seconds;
      return sample;
    }
    const double seconds = context_->Decode(FillToDepth(test), test.n_gen).seconds;
    sample.tokens_per_second = static_cast<double>(test.n_gen * test.n_batch) / seconds;
    return sample;
  }

  void Finish() override { context_.reset(); }

 private:
  // Brings every sequence to the end of its prompt; what is there already is kept. Returns the
  // first token that each one generates.
  std::vector<int32_t> FillToDepth(const BenchTest& test) {
    std::vector<int32_t> first;
    for (int b = 0; b < static_cast<int>(test.n_batch); ++b) {
      const int64_t keep = std::min(context_->n_tokens(b), test.prompt_tokens() - 1);
      context_->Rewind(b, keep);
      const auto present = static_cast<size_t>(context_->n_tokens(b));
      first.push_back(context_->Prefill(b, std::span(test.prompts[b]).subspan(present)).next_token);
    }
    return first;
  }

  PeerModel* model_;
  int n_threads_;
  PeerOptions options_;
  std::unique_ptr<PeerLlama> context_;
};

}  // namespace

// The one that ends the prompt, and one that is left when the clock stops.
int64_t MaxNewTokens(const BenchTest& test) { return test.n_gen + 2; }

std::unique_ptr<BenchSide> MakeWinnowSide(Engine* engine, const WinnowSideOptions& options) {
  return std::make_unique<WinnowSide>(engine, options);
}

std::unique_ptr<BenchSide> MakePeerSide(PeerModel* model, int n_threads, PeerAttention attention,
                                        bool kv_unified, DType kv_dtype) {
  PeerOptions options;
  options.attention = attention;
  options.kv_unified = kv_unified;
  options.kv_dtype = kv_dtype;
  return std::make_unique<PeerSide>(model, n_threads, options);
}

}  // namespace winnow
