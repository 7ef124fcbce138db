#include "cli/bench_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench_runner.h"
#include "cli/auto_profile.h"
#include "cli/bench_sweep.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "model/model_info.h"
#include "policy/arm.h"

namespace winnow {
namespace {

struct BenchFlags {
  ModelFlags model;
  BenchOptions bench;
  std::string peer;
  PeerChoice peer_attention = PeerChoice::kBoth;
  SweepFlags sweep;
};

void AddTestFlags(CLI::App& command, BenchOptions& options) {
  const std::string group = "Tests";
  const auto add_list = [&](const char* name, std::vector<int64_t>& values, const char* help,
                            int64_t least) {
    command.add_option(name, values, help)
        ->type_name("N,...")
        ->delimiter(',')
        ->check(Between(least, int64_t{1} << 30))
        ->capture_default_str()
        ->group(group);
  };
  add_list("-p,--n-prompt", options.prompts, "Prompt lengths to prefill; 0: no such test", 0);
  add_list("-n,--n-gen", options.generate, "Tokens to generate at each depth; 0: no such test", 0);
  add_list("-d,--n-depth", options.depths, "Tokens in the cache when generation begins", 0);
  add_list("-b,--n-batch", options.batches, "Sequences that generate together", 1);
  command.add_option("-r,--repetitions", options.repetitions, "Times to repeat each test")
      ->type_name("N")
      ->check(Between(1, 10000))
      ->capture_default_str()
      ->group(group);
  command.add_option("--seed", options.seed, "Seed of the random prompts")
      ->type_name("N")
      ->check(Between(0, std::numeric_limits<int64_t>::max()))
      ->capture_default_str()
      ->group(group);
  command.add_option("--arm", options.arms, "How the context is read; may be given several times")
      ->type_name("ARM")
      ->expected(1)
      ->take_all()
      ->capture_default_str()
      ->group(group);
}

void AddPeerFlags(CLI::App& command, BenchFlags& flags) {
  const std::string group = "Comparison";
  command.add_option("--peer", flags.peer, "Measure in turn with: llama.cpp (in this process)")
      ->type_name("NAME")
      ->transform(OneOf("peer", PeerNames()))
      ->group(group);
  const std::map<std::string, PeerChoice> choices = {
      {"on", PeerChoice::kFlash}, {"off", PeerChoice::kPlain}, {"best", PeerChoice::kBoth}};
  const auto choose = [&flags, choices](const std::string& name) {
    flags.peer_attention = choices.at(name);
  };
  command
      .add_option_function<std::string>(
          "--peer-fa", choose,
          "The peer's flash attention: on, off, or best (both are measured, ratios are to "
          "the faster one of each test)")
      ->type_name("on|off|best")
      ->transform(OneOf("choice", {"on", "off", "best"}))
      ->default_str("best")
      ->group(group);
}

// Rows that pass through the model at once, at most.
int64_t LargestStep(const BenchOptions& options) {
  int64_t largest = std::max<int64_t>(options.engine.prefill_chunk, options.engine.max_batch);
  for (const int64_t batch : options.batches) largest = std::max(largest, batch);
  return largest;
}

int RunBenchCommand(BenchFlags& flags, bool json) {
  if (!flags.sweep.list.empty()) {
    return RunBenchSweep(flags.sweep, flags.model, flags.bench.repetitions, json);
  }
  BenchOptions& options = flags.bench;
  if (flags.peer_attention == PeerChoice::kPlain && flags.model.kv_type == "q8_0") {
    Throw(ErrorKind::kUsage,
          "--peer-fa off and --kv-type q8_0 exclude each other: llama.cpp reads a quantised KV "
          "cache only with flash attention");
  }
  const ModelFile model = ResolveModel(flags.model.model);
  options.model_path = model.path;
  options.engine = ToEngineOptions(flags.model);
  options.engine.planes = ArmPlanes(options.arms);
  options.engine.model_path = options.model_path;
  options.peer = flags.peer.empty() ? PeerChoice::kNone : flags.peer_attention;

  // Before the model is loaded, and it names what is wrong better than llama.cpp does.
  const ModelConfig config = ReadModelInfo(options.model_path).config;
  CheckBench(options, config);
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load(options.model_path);
  ThreadPool pool(flags.model.threads > 0 ? flags.model.threads : DefaultThreads());
  if (WantsAuto(flags.model, options.arms)) {
    options.engine.auto_arm = ResolveAutoArm(flags.model, options.model_path, config, &pool);
  }
  const std::unique_ptr<Backbone> backbone =
      LoadCpuBackbone(options.model_path, &pool, {.max_tokens = LargestStep(options)});
  std::vector<BenchRow> rows;
  {
    const ChangingLine line(/*enabled=*/true);
    rows = RunBench({.backbone = backbone.get(), .tokenizer = tokenizer.get(), .pool = &pool},
                    options, [&](std::string_view what) { line.Show(what); });
  }

  nlohmann::ordered_json rows_json = BenchToJson(rows);
  for (nlohmann::ordered_json& row : rows_json) row["model_filename"] = model.name;
  Output output;
  output.Write(json ? DumpJson(rows_json, /*indent=*/true) + "\n" : BenchTable(rows));
  return output.ExitCode(0);
}

}  // namespace

void AddBenchCommand(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand(
      "bench", "Measure tokens a second of prefill and decode, also against llama.cpp");
  auto flags = std::make_shared<BenchFlags>();
  AddModelFlags(*command, flags->model);
  AddAutoFlags(*command, flags->model);
  AddTestFlags(*command, flags->bench);
  AddPeerFlags(*command, *flags);
  AddSweepFlags(*command, flags->sweep, command->get_options([](const CLI::Option* option) {
    constexpr std::array kShared = {"--help", "--threads", "--kv-type", "--repetitions"};
    return std::none_of(kShared.begin(), kShared.end(),
                        [&](const char* name) { return option->check_lname(name + 2); });
  }));
  AddJsonFlag(*command, context);
  command->footer(
      "Example: decoding behind short and long contexts, beside llama.cpp\n"
      "  winnow bench -m model.gguf -d 0,4096 --peer llama.cpp\n"
      "Example: the time of a layer over the parameters of routing, with heat maps\n"
      "  winnow bench --sweep P,Kc,solver,iterations --out sweep/");
  command->callback([flags, &context] {
    context.run = [flags, &context] { return RunBenchCommand(*flags, context.json); };
  });
}

}  // namespace winnow
