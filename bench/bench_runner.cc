#include "bench/bench_runner.h"

#include <fmt/format.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "bench/bench_side.h"
#include "core/byte_size.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/rng.h"
#include "engine/scheduler.h"
#include "kv/page_layout.h"
#include "policy/arm.h"

namespace winnow {
namespace {

void CheckNumbers(const std::string& flag, const std::vector<int64_t>& values, int64_t least) {
  for (const int64_t value : values) {
    if (value < least) Throw(ErrorKind::kUsage, "{}: {} is below {}", flag, value, least);
  }
}

void ValidateOptions(const BenchOptions& options) {
  CheckNumbers("-p", options.prompts, 0);
  CheckNumbers("-n", options.generate, 0);
  CheckNumbers("-d", options.depths, 0);
  CheckNumbers("-b", options.batches, 1);
  CheckNumbers("-r", {options.repetitions}, 1);
  if (options.arms.empty()) Throw(ErrorKind::kUsage, "at least one arm is needed");
  for (const std::string& arm : options.arms) {
    if (ParseArm(arm).prefill_fingerprint == 0) continue;
    Throw(ErrorKind::kUsage,
          "'{}': prompts here are random tokens, without documents that could be pruned; compare "
          "and eval measure such an arm",
          arm);
  }
}

// Token ids that ordinary text consists of.
std::vector<int32_t> OrdinaryTokens(const BenchSubject& subject) {
  const llama_vocab* vocab = subject.tokenizer == nullptr ? nullptr : subject.tokenizer->vocab();
  const bool typed = vocab != nullptr && llama_vocab_type(vocab) != LLAMA_VOCAB_TYPE_NONE;
  std::vector<int32_t> tokens;
  for (int32_t t = 0; t < subject.backbone->config().vocabulary; ++t) {
    const bool special =
        typed && (llama_vocab_is_control(vocab, t) || llama_vocab_is_eog(vocab, t));
    if (!special) tokens.push_back(t);
  }
  if (tokens.empty()) Throw(ErrorKind::kInput, "the model's vocabulary has control tokens only");
  return tokens;
}

// Random tokens, as llama-bench's prompts are, behind a begin token where the model wants one.
class PromptMaker {
 public:
  PromptMaker(const BenchSubject& subject, uint64_t seed)
      : tokens_(OrdinaryTokens(subject)), seed_(seed) {
    const llama_vocab* vocab = subject.tokenizer == nullptr ? nullptr : subject.tokenizer->vocab();
    if (vocab != nullptr && llama_vocab_get_add_bos(vocab)) begin_ = llama_vocab_bos(vocab);
  }

  std::vector<int32_t> Make(int64_t n, int64_t sequence) const {
    Rng rng(seed_ * 1000003 + static_cast<uint64_t>(sequence));
    std::vector<int32_t> prompt(n);
    for (int32_t& token : prompt) token = tokens_[rng.Below(tokens_.size())];
    if (begin_ >= 0) prompt[0] = begin_;
    return prompt;
  }

 private:
  std::vector<int32_t> tokens_;
  uint64_t seed_;
  int32_t begin_ = -1;
};

std::vector<BenchTest> MakeTests(const BenchOptions& options) {
  std::vector<BenchTest> tests;
  for (const int64_t n : options.prompts) {
    if (n > 0) tests.push_back({.n_prompt = n});
  }
  for (const int64_t depth : options.depths) {
    for (const int64_t batch : options.batches) {
      for (const int64_t n : options.generate) {
        if (n > 0) tests.push_back({.n_gen = n, .n_depth = depth, .n_batch = batch});
      }
    }
  }
  if (tests.empty()) Throw(ErrorKind::kUsage, "nothing to measure: give -p or -n above zero");
  return tests;
}

// Each test's own, while it is measured: all tests' together may exceed the memory.
void MakePrompts(const PromptMaker& maker, BenchTest* test) {
  for (int64_t b = 0; b < test->n_batch; ++b) {
    test->prompts.push_back(maker.Make(test->prompt_tokens(), b));
  }
}

void CheckContext(const std::vector<BenchTest>& tests, int64_t context_tokens) {
  for (const BenchTest& test : tests) {
    // One token is drawn when the prompt ends, one is left to begin the step after the last.
    const int64_t needed = test.prompt_tokens() + test.n_gen + (test.n_gen > 0 ? 2 : 1);
    if (needed > context_tokens) {
      Throw(ErrorKind::kInput,
            "the test takes {} tokens and the context holds {}: shorten -p, -d or -n", needed,
            context_tokens);
    }
  }
}

int64_t ContextTokens(const EngineOptions& engine, const ModelConfig& config) {
  return engine.context_tokens > 0 ? engine.context_tokens : config.context_length;
}

// Bytes of pages that the largest test holds. Throws Error(kResource) if there is no room for them.
int64_t KvBytes(const std::vector<BenchTest>& tests, const ModelConfig& config,
                const EngineOptions& engine) {
  const PageLayout layout(config.kv_heads, engine.page_slots, config.head_dim, engine.kv_dtype,
                          engine.planes);
  int64_t pages = 0;
  for (const BenchTest& test : tests) {
    const int64_t n_tokens =
        std::min(test.prompt_tokens() + MaxNewTokens(test), ContextTokens(engine, config));
    pages = std::max(pages, test.n_batch * WorstCasePages(config, n_tokens, engine.page_slots,
                                                          engine.prefill_chunk));
  }
  const int64_t room =
      engine.kv_bytes > 0 ? engine.kv_bytes : static_cast<int64_t>(AvailableMemoryBytes());
  const int64_t page_bytes = layout.TotalBytes();
  if (pages > room / page_bytes) {  // the product may be too large for an int64_t
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    const auto [needs, has] =
        FormatBytesApart(pages > kMost / page_bytes ? kMost : pages * page_bytes, room);
    Throw(ErrorKind::kResource,
          "the tests need {} of KV memory and there are {}: lower -b, -d or -n", needs, has);
  }
  return pages * page_bytes;
}

// Winnow's and the peer's sides, with what they refer to.
struct Sides {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<PeerModel> peer;
  std::vector<std::unique_ptr<BenchSide>> all;
};

void AddPeerSides(const BenchSubject& subject, const BenchOptions& options, Sides* sides) {
  if (options.peer == PeerChoice::kNone) return;
  const int n_threads = subject.pool->size();
  sides->peer = std::make_unique<PeerModel>(options.model_path, n_threads, subject.pool);
  // libllama keeps quantised values only with flash attention.
  const bool plain_possible = options.engine.kv_dtype != DType::kQ8_0;
  std::vector<PeerAttention> paths;
  if (options.peer != PeerChoice::kPlain) paths.push_back(PeerAttention::kFlash);
  if (options.peer == PeerChoice::kPlain || (options.peer == PeerChoice::kBoth && plain_possible)) {
    paths.push_back(PeerAttention::kPlain);
  }
  for (const PeerAttention path : paths) {
    for (const bool unified : {false, true}) {
      sides->all.push_back(
          MakePeerSide(sides->peer.get(), n_threads, path, unified, options.engine.kv_dtype));
    }
  }
}

Sides MakeSides(const BenchSubject& subject, const BenchOptions& options,
                const std::vector<BenchTest>& tests) {
  const ModelConfig& config = subject.backbone->config();
  EngineOptions engine = options.engine;
  engine.prefix_reuse = true;  // the cache is filled once for all repetitions
  // Room is counted in pages as the engine will have them.
  engine.planes.Add(engine.auto_arm.planes(ContextTokens(engine, config)));
  for (const BenchTest& test : tests) {
    engine.max_batch = std::max(engine.max_batch, static_cast<int>(test.n_batch));
  }
  if (engine.kv_bytes == 0) engine.kv_bytes = KvBytes(tests, config, engine);

  Sides sides;
  sides.engine =
      std::make_unique<Engine>(subject.backbone, subject.tokenizer, subject.pool, engine);
  for (const std::string& arm : options.arms) {
    sides.all.push_back(
        MakeWinnowSide(sides.engine.get(), {.arm = arm,
                                            .n_threads = subject.pool->size(),
                                            .report_peak_rss = options.peer == PeerChoice::kNone}));
  }
  AddPeerSides(subject, options, &sides);
  return sides;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

BenchRow MakeRow(const BenchSide& side, const BenchTest& test,
                 const std::vector<BenchSample>& samples) {
  BenchRow row = side.Describe();
  row.n_prompt = test.n_prompt;
  row.n_gen = test.n_gen;
  row.n_depth = test.n_depth;
  row.n_batch = test.n_batch;
  std::vector<double> ttft_ms;
  for (const BenchSample& sample : samples) {
    row.samples_ts.push_back(sample.tokens_per_second);
    if (sample.ttft_seconds) ttft_ms.push_back(*sample.ttft_seconds * 1000);
  }
  if (!ttft_ms.empty()) row.ttft_ms = Median(ttft_ms);
  row.bytes_read = samples.back().bytes_read;
  row.bytes_dense = samples.back().bytes_dense;
  row.peak_rss_bytes = samples.back().peak_rss_bytes;
  return row;
}

std::string TestName(const BenchRow& row) {
  std::string name =
      row.n_prompt > 0 ? fmt::format("pp{}", row.n_prompt) : fmt::format("tg{}", row.n_gen);
  if (row.n_depth > 0) name += fmt::format(" @ d{}", row.n_depth);
  if (row.n_batch > 1) name += fmt::format(" x {}", row.n_batch);
  return name;
}

std::string Settings(const BenchRow& row) {
  if (!row.flash_attn) return row.arm;
  return fmt::format("{}{}", *row.flash_attn ? "fa on" : "fa off",
                     row.kv_unified.value_or(false) ? ", one KV buffer" : "");
}

const BenchRow* FastestPeer(const std::vector<BenchRow>& rows, const BenchRow& of) {
  const BenchRow* best = nullptr;
  for (const BenchRow& row : rows) {
    if (row.engine == "winnow" || TestName(row) != TestName(of)) continue;
    if (best == nullptr || row.median_ts() > best->median_ts()) best = &row;
  }
  return best;
}

template <typename T>
nlohmann::ordered_json OrNull(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

}  // namespace

double BenchRow::average_ts() const {
  if (samples_ts.empty()) return 0;
  double sum = 0;
  for (const double x : samples_ts) sum += x;
  return sum / static_cast<double>(samples_ts.size());
}

double BenchRow::median_ts() const { return Median(samples_ts); }

double BenchRow::stddev_ts() const {
  if (samples_ts.size() < 2) return 0;
  const double mean = average_ts();
  double sum = 0;
  for (const double x : samples_ts) sum += (x - mean) * (x - mean);
  return std::sqrt(sum / static_cast<double>(samples_ts.size() - 1));
}

double MedianRatio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) ratios.push_back(a[i] / b[i]);
  return Median(ratios);
}

void CheckBench(const BenchOptions& options, const ModelConfig& config) {
  ValidateOptions(options);
  const std::vector<BenchTest> tests = MakeTests(options);
  CheckContext(tests, ContextTokens(options.engine, config));
  KvBytes(tests, config, options.engine);
}

std::vector<BenchRow> RunBench(const BenchSubject& subject, const BenchOptions& options,
                               FunctionRef<void(std::string_view)> progress) {
  CheckBench(options, subject.backbone->config());
  std::vector<BenchTest> tests = MakeTests(options);
  const PromptMaker maker(subject, options.seed);
  const Sides sides = MakeSides(subject, options, tests);
  std::vector<BenchRow> rows;
  for (BenchTest& test : tests) {
    std::vector<BenchSide*> active;
    for (const auto& side : sides.all) {
      if (side->TakesPart(test)) active.push_back(side.get());
    }
    const std::string name = TestName(MakeRow(*active[0], test, {BenchSample{}}));
    progress(fmt::format("{}: preparing", name));
    MakePrompts(maker, &test);
    for (BenchSide* side : active) side->Prepare(test);
    std::vector<std::vector<BenchSample>> samples(active.size());
    for (int repetition = 0; repetition < options.repetitions; ++repetition) {
      progress(fmt::format("{}: repetition {} of {}", name, repetition + 1, options.repetitions));
      for (size_t i = 0; i < active.size(); ++i) samples[i].push_back(active[i]->Measure(test));
    }
    for (size_t i = 0; i < active.size(); ++i) {
      active[i]->Finish();
      rows.push_back(MakeRow(*active[i], test, samples[i]));
    }
    test.prompts = {};
  }
  return rows;
}

nlohmann::ordered_json BenchToJson(const std::vector<BenchRow>& rows) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const BenchRow& row : rows) {
    array.push_back({{"engine", row.engine},
                     {"arm", row.arm},
                     {"device", row.device},
                     {"n_threads", row.n_threads},
                     {"n_prompt", row.n_prompt},
                     {"n_gen", row.n_gen},
                     {"n_depth", row.n_depth},
                     {"n_batch", row.n_batch},
                     {"avg_ts", row.average_ts()},
                     {"median_ts", row.median_ts()},
                     {"stddev_ts", row.stddev_ts()},
                     {"samples_ts", row.samples_ts},
                     {"ttft_ms", OrNull(row.ttft_ms)},
                     {"bytes_read", OrNull(row.bytes_read)},
                     {"bytes_dense", OrNull(row.bytes_dense)},
                     {"peak_rss_bytes", OrNull(row.peak_rss_bytes)},
                     {"flash_attn", OrNull(row.flash_attn)},
                     {"kv_unified", OrNull(row.kv_unified)}});
  }
  return array;
}

std::string BenchTable(const std::vector<BenchRow>& rows) {
  std::string table = fmt::format("{:<22} {:<10} {:<24} {:>20} {:>9}\n", "test", "engine",
                                  "settings", "tokens/s", "ratio");
  for (const BenchRow& row : rows) {
    std::string ratio;
    if (const BenchRow* peer = row.engine == "winnow" ? FastestPeer(rows, row) : nullptr) {
      ratio = fmt::format("{:.3f} x", MedianRatio(row.samples_ts, peer->samples_ts));
    }
    const std::string speed = fmt::format("{:.2f} ± {:.2f}", row.median_ts(), row.stddev_ts());
    table += fmt::format("{:<22} {:<10} {:<24} {:>20} {:>9}\n", TestName(row), row.engine,
                         Settings(row), speed, ratio);
  }
  return table;
}

}  // namespace winnow
