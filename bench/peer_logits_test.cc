// Winnow's logits and answers against libllama's on the same file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/needle.h"
#include "bench/peer_llama.h"
#include "engine/engine.h"
#include "eval/fidelity.h"
#include "model/backbone.h"
#include "testing/paths.h"

namespace winnow {
namespace {

#if defined(__SANITIZE_ADDRESS__)
// Several times slower: the long prompts would take half an hour. What they reach besides, the
// reads of a second block and the stride, is left to the plain build.
constexpr int64_t kLongestPrompt = 320;
#else
constexpr int64_t kLongestPrompt = 6000;
#endif

// Of prompts longer than this one row in four is compared. From prompt to prompt the ratio of the
// two means scattered around 1 by 0.09 at 320 rows; over the default model's 3,135 rows that is
// about 0.03, where a quarter is allowed.
constexpr int64_t kLongestInFull = 640;
constexpr int64_t kStride = 4;

// Rows of libllama's logits that are held at a time: its micro-batch.
constexpr int64_t kBlock = 512;
static_assert(kBlock % kStride == 0);

struct KlSums {
  double ours = 0;   // KL(libllama plain || Winnow)
  double peers = 0;  // KL(libllama plain || libllama flash)
  int64_t rows = 0;
};

// Model, engine and both contexts of the peer.
struct Pair {
  explicit Pair(const std::string& path)
      : tokenizer(Tokenizer::Load(path)),
        pool(DefaultThreads()),
        backbone(LoadCpuBackbone(path, &pool)),
        engine(backbone.get(), tokenizer.get(), &pool, {}),
        peer(path, pool.size(), &pool) {}

  std::unique_ptr<Tokenizer> tokenizer;
  ThreadPool pool;
  std::unique_ptr<Backbone> backbone;
  Engine engine;
  PeerModel peer;
};

// Logits of one context, a block of positions at a time.
class BlockReader {
 public:
  BlockReader(PeerModel* model, PeerAttention attention, const std::vector<TokenId>& tokens)
      : context_(model,
                 {.context_tokens = static_cast<int64_t>(tokens.size()), .attention = attention}),
        tokens_(tokens),
        vocabulary_(model->vocabulary()) {}

  std::span<const float> Row(int64_t position) {
    if (position == end_) {
      const auto n = std::min<int64_t>(kBlock, static_cast<int64_t>(tokens_.size()) - end_);
      rows_.resize(n * vocabulary_);
      begin_ = end_;
      end_ += n;
      context_.PrefillWithLogits(
          0, std::span(tokens_).subspan(begin_, n), [&](int64_t at, std::span<const float> row) {
            std::copy(row.begin(), row.end(), rows_.begin() + (at - begin_) * vocabulary_);
          });
    }
    return {rows_.data() + (position - begin_) * vocabulary_, static_cast<size_t>(vocabulary_)};
  }

 private:
  PeerLlama context_;
  const std::vector<TokenId>& tokens_;
  int64_t vocabulary_;
  std::vector<float> rows_;
  int64_t begin_ = 0;
  int64_t end_ = 0;
};

void AddPrompt(Pair* pair, const std::vector<TokenId>& tokens, KlSums* sums) {
  BlockReader plain(&pair->peer, PeerAttention::kPlain, tokens);
  BlockReader flash(&pair->peer, PeerAttention::kFlash, tokens);
  Request request;
  request.tokens = tokens;
  request.max_new_tokens = 1;
  request.ignore_end_tokens = true;
  request.arm = "dense";
  KlSums prompt;
  const int64_t stride = static_cast<int64_t>(tokens.size()) > kLongestInFull ? kStride : 1;
  request.on_prompt_logits = [&](int64_t position, std::span<const float> logits) {
    if (position % stride != 0) return;
    const std::span<const float> reference = plain.Row(position);
    prompt.ours += KlDivergence(reference, logits);
    prompt.peers += KlDivergence(reference, flash.Row(position));
    ++prompt.rows;
  };
  const RequestResult result = pair->engine.Run(std::move(request));
  ASSERT_NE(result.finish_reason, FinishReason::kFailed) << result.error;
  ASSERT_EQ(prompt.rows, (static_cast<int64_t>(tokens.size()) + stride - 1) / stride);
  const auto rows = static_cast<double>(prompt.rows);
  printf("%5zu tokens: mean KL to libllama %.3e, between its two attention paths %.3e\n",
         tokens.size(), prompt.ours / rows, prompt.peers / rows);
  std::fflush(stdout);
  sums->ours += prompt.ours;
  sums->peers += prompt.peers;
  sums->rows += prompt.rows;
}

std::optional<std::string> ReadBook(const std::string& name) {
  const std::optional<std::string> path = testing::SharedDataPath(name);
  if (!path) return std::nullopt;
  std::ifstream file(*path, std::ios::binary);
  return std::string{std::istreambuf_iterator<char>(file), {}};
}

// Mean KL over the positions of prompts of these sizes, taken from the two books in turn.
void ExpectNoFartherThanItsOwnPaths(const std::string& path, const std::vector<int64_t>& sizes) {
  const std::optional<std::string> books[] = {ReadBook("sherlock_holmes.txt"),
                                              ReadBook("pride_and_prejudice.txt")};
  if (!books[0] || !books[1]) GTEST_SKIP() << "the books of ../shared/data are absent";
  Pair pair(path);
  KlSums sums;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > kLongestPrompt) continue;
    // 16 bytes a token are more than enough; each prompt begins elsewhere.
    const std::string text = books[i % 2]->substr(20'000 * i, 16 * sizes[i]);
    std::vector<TokenId> tokens =
        pair.tokenizer->Encode(text, /*add_special=*/true, /*parse_special=*/false);
    ASSERT_GE(static_cast<int64_t>(tokens.size()), sizes[i]);
    tokens.resize(sizes[i]);
    AddPrompt(&pair, tokens, &sums);
  }
  // Both of libllama's paths are right and differ by rounding (f16 probabilities and sums against
  // f32). Winnow's rounding may differ from the plain path by as much again, and a quarter for
  // luck.
  EXPECT_LE(sums.ours, 1.25 * sums.peers)
      << "mean KL " << sums.ours / static_cast<double>(sums.rows) << " against "
      << sums.peers / static_cast<double>(sums.rows);
}

TEST(KlDivergence, AgreesWithHandComputedValues) {
  const std::vector<float> p = {0.0f, std::log(3.0f)};  // 1/4, 3/4
  const std::vector<float> q = {1.0f, 1.0f};            // 1/2, 1/2
  // Inputs are rounded to f32: a relative error of 6e-8 in a logit of about 1.
  EXPECT_NEAR(KlDivergence(p, q), 0.25 * std::log(0.5) + 0.75 * std::log(1.5), 1e-7);
  EXPECT_EQ(KlDivergence(p, p), 0.0);
  const std::vector<float> shifted = {100.0f, 100.0f};
  // A double near 100 is exact to 7e-15; a few of them are added.
  EXPECT_NEAR(KlDivergence(q, shifted), 0.0, 1e-13);
}

TEST(PeerLogits, DefaultModelIsNoFartherThanLibllamasOwnPaths) {
  const std::optional<std::string> model = testing::DefaultModelPath();
  if (!model) GTEST_SKIP() << "the default model is absent";
  ExpectNoFartherThanItsOwnPaths(*model, {20, 40, 80, 160, 320, 640, 1500, 6000});
}

class RequantisedLogits : public ::testing::TestWithParam<const char*> {};

TEST_P(RequantisedLogits, AreNoFartherThanLibllamasOwnPaths) {
  const std::optional<std::string> model = testing::DefaultModelPath();
  if (!model) GTEST_SKIP() << "the default model is absent";
  const std::string path = testing::TemporaryFolder() + "/model." + GetParam() + ".gguf";
  RequantizeGguf(*model, path, GetParam(), DefaultThreads());
  ExpectNoFartherThanItsOwnPaths(path, {20, 40, 80, 160, 320, 640});
}

INSTANTIATE_TEST_SUITE_P(Types, RequantisedLogits, ::testing::Values("Q4_0", "Q4_K_M"));

// Twenty prompts of 6,800 tokens are needle_bench's; this is the same code on two short ones.
TEST(Needle, FoundAsOftenAsByLibllama) {
  const std::optional<std::string> model = testing::DefaultModelPath();
  if (!model) GTEST_SKIP() << "the default model is absent";
  const std::optional<std::string> book = ReadBook("pride_and_prejudice.txt");
  if (!book) GTEST_SKIP() << "the books of ../shared/data are absent";
  Pair pair(*model);
  PeerLlama peer(&pair.peer, {.context_tokens = 2048});
  int hits = 0;
  int peer_hits = 0;
  for (const uint64_t seed : {1, 2}) {
    const NeedlePrompt prompt = MakeNeedlePrompt(*pair.tokenizer, *book, 1500, seed);
    EXPECT_NEAR(static_cast<double>(prompt.tokens.size()), 1500, 150);
    const NeedleResult result = RunNeedle(prompt, *pair.tokenizer, &pair.engine, &peer);
    printf("needle %s: winnow '%s', llama.cpp '%s'\n", result.value.c_str(),
           result.winnow_text.c_str(), result.peer_text.c_str());
    hits += result.winnow_hit ? 1 : 0;
    peer_hits += result.peer_hit ? 1 : 0;
  }
  EXPECT_GE(hits, peer_hits);
  EXPECT_GT(peer_hits, 0);
}

}  // namespace
}  // namespace winnow
