// One side of a benchmark: an engine with its settings that can prepare a test and repeat it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/bench_runner.h"

namespace winnow {

// A prefill test (n_prompt > 0) or a decode test (n_gen > 0), never both.
struct BenchTest {
  int64_t n_prompt = 0;
  int64_t n_gen = 0;
  int64_t n_depth = 0;
  int64_t n_batch = 1;
  // [n_batch][n_prompt or max(n_depth, 1)]: a decode test begins behind them.
  std::vector<std::vector<int32_t>> prompts;

  int64_t prompt_tokens() const { return n_prompt > 0 ? n_prompt : std::max<int64_t>(n_depth, 1); }
};

struct BenchSample {
  double tokens_per_second = 0;
  std::optional<double> ttft_seconds;
  std::optional<int64_t> bytes_read;  // a token
  std::optional<int64_t> bytes_dense;
  std::optional<int64_t> peak_rss_bytes;
};

class BenchSide {
 public:
  virtual ~BenchSide() = default;
  // The fields that say who it is.
  virtual BenchRow Describe() const = 0;
  // Whether it takes part in `test`.
  virtual bool TakesPart(const BenchTest& test) const = 0;
  // Allocates, warms up, and fills the cache up to the depth.
  virtual void Prepare(const BenchTest& test) = 0;
  virtual BenchSample Measure(const BenchTest& test) = 0;
  // Gives back what Prepare took.
  virtual void Finish() = 0;
};

// New tokens that one of Winnow's sequences may generate.
int64_t MaxNewTokens(const BenchTest& test);

struct WinnowSideOptions {
  std::string arm;
  int n_threads = 0;
  bool report_peak_rss = false;
};

// `engine` outlives the side.
std::unique_ptr<BenchSide> MakeWinnowSide(Engine* engine, const WinnowSideOptions& options);

// `model` outlives the side. With `kv_unified` the side takes part in batches only.
std::unique_ptr<BenchSide> MakePeerSide(PeerModel* model, int n_threads, PeerAttention attention,
                                        bool kv_unified, DType kv_dtype);

}  // namespace winnow
