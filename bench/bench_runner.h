// Speed of Winnow and of libllama on the same model in one process, repetition by repetition in
// turn, so that what disturbs the machine disturbs both.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/peer_llama.h"
#include "core/function_ref.h"
#include "engine/engine.h"

namespace winnow {

// Which of libllama's attention paths are measured.
enum class PeerChoice : uint8_t {
  kNone,
  kFlash,
  kPlain,
  kBoth,  // both; comparisons take the faster one of each test
};

struct BenchOptions {
  std::string model_path;                // of the peer
  std::vector<int64_t> prompts = {512};  // prefill tests, at depth 0; zeros are left out
  std::vector<int64_t> generate = {
      128};                            // decode tests, at every depth and batch; zeros are left out
  std::vector<int64_t> depths = {0};   // tokens that are in the cache when a decode test begins
  std::vector<int64_t> batches = {1};  // sequences that decode together
  std::vector<std::string> arms = {"auto"};
  PeerChoice peer = PeerChoice::kNone;
  int repetitions = 5;
  uint64_t seed = 1;
  EngineOptions
      engine;  // kv_bytes 0: what the largest test needs; max_batch is raised to the tests'
};

// One side of one test.
struct BenchRow {
  std::string engine;  // "winnow" or "llama.cpp"
  std::string arm;     // the peer's is "dense"
  std::string device = "cpu";
  int n_threads = 0;
  int64_t n_prompt = 0;  // tokens computed in the timed part; 0 for decode
  int64_t n_gen = 0;     // tokens a sequence generates in it; 0 for prefill
  int64_t n_depth = 0;
  int64_t n_batch = 1;
  std::vector<double> samples_ts;      // tokens a second, all sequences together, one a repetition
  std::optional<double> ttft_ms;       // median, of prefill tests
  std::optional<int64_t> bytes_read;   // of keys and values a token; not known of the peer
  std::optional<int64_t> bytes_dense;  // what dense attention would have read
  std::optional<int64_t> peak_rss_bytes;  // of the process so far; none if the peer runs in it too
  std::optional<bool> flash_attn;         // of the peer
  std::optional<bool> kv_unified;         // of the peer

  double average_ts() const;
  double median_ts() const;
  double stddev_ts() const;  // of the sample (n - 1), 0 for one
};

// What RunBench measures; the pieces outlive the call. `tokenizer` may be null: then every token id
// of the vocabulary may appear in a prompt.
struct BenchSubject {
  Backbone* backbone = nullptr;
  const Tokenizer* tokenizer = nullptr;
  ThreadPool* pool = nullptr;
};

// Throws Error(kUsage) if there is nothing to do, a number is out of range, or an arm prunes (there
// are no documents); Error(kInput) if a test exceeds the context, Error(kResource) if its keys and
// values exceed the memory. RunBench begins with it; who sizes a backbone by `options` calls it
// before that.
void CheckBench(const BenchOptions& options, const ModelConfig& config);

// Rows test by test, Winnow's arms first. `progress` is told what is about to be measured. Throws
// what CheckBench, Engine (an unknown arm) and PeerLlama throw.
std::vector<BenchRow> RunBench(const BenchSubject& subject, const BenchOptions& options,
                               FunctionRef<void(std::string_view)> progress);

// The array of rows described in docs/benchmarks.md.
nlohmann::ordered_json BenchToJson(const std::vector<BenchRow>& rows);

// A table for people, a line a row, with the ratio of each of Winnow's rows to the fastest of the
// peer's on the same test: the median over the pairs of repetitions.
std::string BenchTable(const std::vector<BenchRow>& rows);

// The median of a[i] / b[i] over the pairs.
double MedianRatio(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace winnow
