// What every subcommand shares: how it registers itself, the flags that choose and load a model,
// and the way to a loaded model.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "engine/engine.h"
#include "model/backbone.h"
#include "text/tokenizer.h"

namespace winnow {

// How a subcommand talks to main. `Add…Command(app, context)` registers the subcommand with its
// flags; its CLI11 callback does no work but sets `run`, which main calls once parsing has
// succeeded.
struct CommandContext {
  // Returns the exit code; may throw Error. Standard output belongs to the command.
  std::function<int()> run;
  // The command was asked for JSON: main also prints errors as JSON. Set by AddJsonFlag.
  bool json = false;
  bool verbose = false;  // the libraries' logs are shown on stderr
};

// Adds --json to `command`, bound to `context.json`.
void AddJsonFlag(CLI::App& command, CommandContext& context);

// Flags that choose a model and how it is run; what 0 and "" stand for is in the help text.
struct ModelFlags {
  std::string model = "default";
  int threads = 0;      // 0: DefaultThreads()
  int64_t context = 0;  // tokens; 0: the model's
  std::string kv_type = "f16";
  uint64_t kv_memory = 0;  // bytes; 0: one context, or what fits
  int64_t prefill_chunk = 512;
  bool no_prefix_reuse = false;
  std::string profile;     // of AddAutoFlags (cli/auto_profile.h); "": found by the model's hash
  int64_t break_even = 0;  // likewise; tokens, 0: measured
};

// Adds -m, -t, -c, --kv-type, --kv-memory, --prefill-chunk and --no-prefix-reuse.
void AddModelFlags(CLI::App& command, ModelFlags& flags);

// Accepts whole numbers from `low` to `high`, and keeps quiet about it in the help text.
CLI::Validator Between(int64_t low, int64_t high);
// Likewise of numbers with a fraction; what is not a number is outside.
CLI::Validator RealBetween(double low, double high);

// Refuses an empty text: for flags where it stands for nothing.
CLI::Validator NotEmpty();

// Accepts one of `names`, in capitals or not, and turns it into the name as it is written there.
// Its message offers the nearest name and lists all. `what` is singular: "peer".
CLI::Validator OneOf(const std::string& what, const std::vector<std::string>& names);

// The values of --peer.
std::vector<std::string> PeerNames();

// A size such as "2G", "1.5 GiB" or "512M" in bytes (K, M, G, T are powers of 1024, with or without
// B or iB), rounded down, from 1 to 2^63 - 1. `command`'s option converts it while parsing.
CLI::Option* AddSizeOption(CLI::App& command, const std::string& name, uint64_t& bytes,
                           const std::string& help);

// Throws Error(kUsage) for an unknown KV type.
EngineOptions ToEngineOptions(const ModelFlags& flags);

struct LoadedModel {
  std::string path;
  std::string name;  // what outputs call it: the path, or "synthetic:…"
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Backbone> backbone;
  AutoArm auto_arm;                // of the engine
  std::unique_ptr<Engine> engine;  // last: it refers to the others
};

struct ModelFile {
  std::string path;
  std::string name;  // as in LoadedModel
};

// The GGUF file that the value of -m stands for: a path as it is; "default": the model that `make
// deps` brings; "synthetic:…": one that is made here (model/synthetic.h), with a warning that says
// so. Throws Error(kInput) if there is no default model, and what MakeSyntheticModel throws.
ModelFile ResolveModel(const std::string& name);

// Whether one of the arms is auto. Throws Error(kUsage) for --profile or --break-even if none is.
bool WantsAuto(const ModelFlags& flags, const std::vector<std::string>& arms);

// Loads tokenizer and weights, with the Jinja source `chat_template` in place of the file's
// template unless it is empty, and makes an engine of ToEngineOptions(flags) for these arms; where
// one prunes, it knows what prefill costs (ResolvePrefillCosts). Throws what ReadModelInfo (which
// comes first), ResolveAutoArm (where one of the arms is auto), Tokenizer::Load, LoadCpuBackbone
// and Engine throw.
LoadedModel LoadModel(const ModelFlags& flags, const std::vector<std::string>& arms,
                      const std::string& chat_template = "");

}  // namespace winnow
