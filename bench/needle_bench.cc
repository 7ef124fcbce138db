// Needles in a book, Winnow beside libllama on the same prompts:
//   build/bin/needle_bench --book BOOK.txt [-m MODEL.gguf] [--tokens 6800] [--prompts 20] [--json]
// Exit code 1 if Winnow finds fewer than libllama does.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/needle.h"
#include "core/error.h"
#include "model/backbone.h"
#include "testing/paths.h"
#include "text/read_file.h"

namespace winnow {
namespace {

struct Flags {
  std::string model = testing::DefaultModelPath().value_or("");
  std::string book;
  int64_t tokens = 6800;
  int prompts = 20;
  uint64_t seed = 1;
  int threads = DefaultThreads();
  bool json = false;
};

int Run(const Flags& flags) {
  std::string book;
  if (const int error = ReadFile(flags.book, &book); error != 0) {
    Throw(ErrorKind::kInput, "{}: cannot be read: {}", flags.book, std::strerror(error));
  }

  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load(flags.model);
  ThreadPool pool(flags.threads);
  const std::unique_ptr<Backbone> backbone = LoadCpuBackbone(flags.model, &pool);
  Engine engine(backbone.get(), tokenizer.get(), &pool, {});
  PeerModel peer_model(flags.model, flags.threads, &pool);
  PeerLlama peer(&peer_model, {.context_tokens = engine.context_tokens()});

  int hits = 0;
  int peer_hits = 0;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (int i = 0; i < flags.prompts; ++i) {
    const NeedlePrompt prompt = MakeNeedlePrompt(*tokenizer, book, flags.tokens, flags.seed + i);
    const NeedleResult result = RunNeedle(prompt, *tokenizer, &engine, &peer);
    hits += result.winnow_hit ? 1 : 0;
    peer_hits += result.peer_hit ? 1 : 0;
    rows.push_back({{"prompt_tokens", result.prompt_tokens},
                    {"value", result.value},
                    {"winnow_hit", result.winnow_hit},
                    {"peer_hit", result.peer_hit},
                    {"winnow_text", result.winnow_text},
                    {"peer_text", result.peer_text}});
    if (flags.json) continue;
    fmt::print("prompt {:2}: {} tokens, {}: winnow {}, llama.cpp {}\n", i + 1, result.prompt_tokens,
               result.value, result.winnow_hit ? "found" : "missed",
               result.peer_hit ? "found" : "missed");
    std::fflush(stdout);
  }
  if (flags.json) {
    const nlohmann::ordered_json all = {{"passed", hits},
                                        {"failed", flags.prompts - hits},
                                        {"peer_passed", peer_hits},
                                        {"prompts", rows}};
    fmt::print("{}\n", all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    fmt::print("{} passed, {} failed (llama.cpp: {} passed, {} failed)\n", hits,
               flags.prompts - hits, peer_hits, flags.prompts - peer_hits);
  }
  return hits >= peer_hits ? 0 : 1;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Needles in a book: Winnow beside libllama");
  app.add_option("-m,--model", flags.model, "GGUF file")->capture_default_str();
  app.add_option("--book", flags.book, "Text file to plant needles in")->required();
  app.add_option("--tokens", flags.tokens, "Tokens of a prompt")->capture_default_str();
  app.add_option("--prompts", flags.prompts, "Number of prompts")->capture_default_str();
  app.add_option("--seed", flags.seed, "Seed of the first prompt")->capture_default_str();
  app.add_option("-t,--threads", flags.threads, "Threads")->capture_default_str();
  app.add_flag("--json", flags.json, "Print JSON");
  CLI11_PARSE(app, argc, argv);
  try {
    return Run(flags);
  } catch (const Error& error) {
    std::fputs(fmt::format("needle_bench: {}\n", error.what()).c_str(), stderr);
    return 2;
  }
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) { return winnow::Main(argc, argv); }
