#include "cli/command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/auto_profile.h"
#include "cli/output.h"
#include "cli/prefill_costs_file.h"
#include "core/error.h"
#include "model/model_info.h"
#include "model/synthetic.h"
#include "policy/arm.h"
#include "policy/nearest_name.h"

namespace winnow {
namespace fs = std::filesystem;
namespace {

constexpr char kDefaultModelFile[] = "SmolLM2-135M-Instruct.Q4_1.gguf";

// Where `make deps` leaves the default model, and where an installed Winnow looks for it.
std::vector<fs::path> ModelFolders() {
  std::vector<fs::path> folders;
  std::error_code ignored;
  const fs::path executable = fs::read_symlink("/proc/self/exe", ignored);
  if (!executable.empty()) {
    folders.push_back(executable.parent_path().parent_path().parent_path() / ".deps/models");
  }
  if (const char* data_home = std::getenv("XDG_DATA_HOME"); data_home != nullptr && *data_home) {
    folders.push_back(fs::path(data_home) / "winnow/models");
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home) {
    folders.push_back(fs::path(home) / ".local/share/winnow/models");
  }
  return folders;
}

// The power of 1024 that a unit such as "", "b", "m", "mb" or "mib" stands for.
std::optional<int> UnitPower(std::string_view unit) {
  constexpr std::string_view kLetters = "kmgt";
  if (unit.empty() || unit == "b") return 0;
  const size_t letter = kLetters.find(unit.front());
  const std::string_view rest = unit.substr(1);
  if (letter == std::string_view::npos || !(rest.empty() || rest == "b" || rest == "ib")) {
    return std::nullopt;
  }
  return static_cast<int>(letter) + 1;
}

// The bytes of a size, or nothing if it is none or does not fit; whole numbers are exact.
std::optional<uint64_t> ParseSize(const std::string& text) {
  const std::string lower = CLI::detail::to_lower(text);
  const char* const end = lower.data() + lower.size();
  const size_t digits = lower.find_first_not_of("0123456789");
  const size_t number = std::min(lower.find_first_not_of("0123456789."), lower.size());
  const size_t unit = std::min(lower.find_first_not_of(' ', number), lower.size());
  const std::optional<int> power = UnitPower({lower.data() + unit, end});
  if (!power.has_value() || number == 0) return std::nullopt;
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  const int shift = 10 * *power;
  if (std::min(digits, lower.size()) == number) {
    uint64_t value = 0;
    const auto [rest, error] = std::from_chars(lower.data(), lower.data() + number, value);
    if (error != std::errc() || value > kMax >> shift) return std::nullopt;
    return value << shift;
  }
  double value = 0;
  const auto [rest, error] =
      std::from_chars(lower.data(), lower.data() + number, value, std::chars_format::fixed);
  if (error != std::errc() || rest != lower.data() + number) return std::nullopt;
  value = std::ldexp(value, shift);
  if (value >= 0x1p63) return std::nullopt;
  return static_cast<uint64_t>(value);
}

}  // namespace

void AddJsonFlag(CLI::App& command, CommandContext& context) {
  command.add_flag("--json", context.json, "Print JSON on standard output (docs/json.md)")
      ->group("Output");
}

CLI::Validator Between(int64_t low, int64_t high) { return CLI::Range(low, high).description(""); }

CLI::Validator RealBetween(double low, double high) {
  const auto check = [low, high](const std::string& text) -> std::string {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && low <= value && value <= high) return "";
    return fmt::format("Value {} not in range [{} - {}]", text, low, high);
  };
  return {check, ""};
}

CLI::Option* AddSizeOption(CLI::App& command, const std::string& name, uint64_t& bytes,
                           const std::string& help) {
  const auto convert = [](std::string& text) -> std::string {
    const std::optional<uint64_t> value = ParseSize(text);
    if (value.value_or(0) == 0) {
      return fmt::format(
          "'{}' is not a size: a number above 0 and below 8 EiB, whole or decimal, in bytes or "
          "with K, M, G or T (powers of 1024; also KB, KiB), such as 512M or 1.5G",
          text);
    }
    text = fmt::format("{}", *value);
    return "";
  };
  return command.add_option(name, bytes, help)->transform(CLI::Validator(convert, ""));
}

CLI::Validator NotEmpty() {
  const auto check = [](const std::string& text) -> std::string {
    return text.empty() ? "an empty text; leave the flag out instead" : "";
  };
  return {check, ""};
}

CLI::Validator OneOf(const std::string& what, const std::vector<std::string>& names) {
  const auto choose = [what, names](std::string& text) -> std::string {
    const std::string lower = CLI::detail::to_lower(text);
    if (std::find(names.begin(), names.end(), lower) != names.end()) {
      text = lower;
      return "";
    }
    return fmt::format("unknown {} '{}'{}; known: {}", what, text, DidYouMean(lower, names),
                       Joined(names));
  };
  return {choose, ""};
}

std::vector<std::string> PeerNames() { return {"llama.cpp"}; }

void AddModelFlags(CLI::App& command, ModelFlags& flags) {
  const std::string group = "Model";
  command
      .add_option(
          "-m,--model", flags.model,
          "GGUF file; 'default' is the small model that `make deps` brings, synthetic:SHAPE one "
          "of random weights, to measure speed")
      ->type_name("PATH")
      ->check(NotEmpty())
      ->capture_default_str()
      ->group(group);
  command.add_option("-t,--threads", flags.threads, "Threads; by default one a physical core")
      ->type_name("N")
      ->check(Between(1, 512))
      ->group(group);
  command
      .add_option("-c,--ctx", flags.context,
                  "Longest prompt and answer together, in tokens; by default the model's context")
      ->type_name("TOKENS")
      ->check(Between(1, 1 << 30))
      ->group(group);
  command.add_option("--kv-type", flags.kv_type, "Type of the KV cache: f16, f32 or q8_0")
      ->type_name("TYPE")
      ->transform(OneOf("KV type", {"f16", "f32", "q8_0"}))
      ->capture_default_str()
      ->group(group);
  AddSizeOption(command, "--kv-memory", flags.kv_memory,
                "Memory for the KV cache, e.g. 2G; by default four whole contexts, or what fits")
      ->type_name("SIZE")
      ->group(group);
  command.add_option("--prefill-chunk", flags.prefill_chunk, "Prompt tokens computed at a time")
      ->type_name("TOKENS")
      ->check(Between(1, 1 << 20))
      ->capture_default_str()
      ->group(group);
  command
      .add_flag("--no-prefix-reuse", flags.no_prefix_reuse,
                "Compute every prompt from its first token, even where its beginning is resident")
      ->group(group);
}

EngineOptions ToEngineOptions(const ModelFlags& flags) {
  EngineOptions options;
  options.context_tokens = flags.context;
  options.kv_bytes = static_cast<int64_t>(flags.kv_memory);
  options.kv_dtype = ParseDType(flags.kv_type);
  options.prefill_chunk = flags.prefill_chunk;
  options.prefix_reuse = !flags.no_prefix_reuse;
  return options;
}

ModelFile ResolveModel(const std::string& name) {
  if (IsSyntheticName(name)) {
    ModelFile model{.path = MakeSyntheticModel(name), .name = name};
    Warn(name + ": random weights, made for measurements of speed; what it answers means nothing");
    return model;
  }
  if (name != "default") return {.path = name, .name = name};
  std::vector<std::string> looked_in;
  for (const fs::path& folder : ModelFolders()) {
    const fs::path path = folder / kDefaultModelFile;
    std::error_code ignored;
    if (fs::exists(path, ignored)) return {.path = path.string(), .name = path.string()};
    looked_in.push_back(folder.string());
  }
  Throw(ErrorKind::kInput,
        "the default model {} was not found (looked in {}): run `make deps` in Winnow's source "
        "folder and, for an installed winnow, copy it to one of these; or name a GGUF file with -m",
        kDefaultModelFile, fmt::join(looked_in, ", "));
}

bool WantsAuto(const ModelFlags& flags, const std::vector<std::string>& arms) {
  const bool wanted = std::find(arms.begin(), arms.end(), kAutoArm) != arms.end();
  if (!wanted && !flags.profile.empty()) {
    Throw(ErrorKind::kUsage, "--profile says what --arm auto runs, and no arm is auto");
  }
  if (!wanted && flags.break_even > 0) {
    Throw(ErrorKind::kUsage, "--break-even says where --arm auto begins, and no arm is auto");
  }
  return wanted;
}

LoadedModel LoadModel(const ModelFlags& flags, const std::vector<std::string>& arms,
                      const std::string& chat_template) {
  EngineOptions engine_options = ToEngineOptions(flags);
  engine_options.planes = ArmPlanes(arms);
  LoadedModel loaded;
  const ModelFile model = ResolveModel(flags.model);
  loaded.path = model.path;
  loaded.name = model.name;
  engine_options.model_path = loaded.path;
  // Names what is wrong better than llama.cpp does.
  const ModelConfig config = ReadModelInfo(loaded.path).config;
  loaded.pool = std::make_unique<ThreadPool>(flags.threads > 0 ? flags.threads : DefaultThreads());
  if (WantsAuto(flags, arms)) {
    loaded.auto_arm = ResolveAutoArm(flags, loaded.path, config, loaded.pool.get());
    engine_options.auto_arm = loaded.auto_arm;
  }
  loaded.tokenizer = Tokenizer::Load(loaded.path, {.chat_template = chat_template});
  BackboneOptions backbone_options;
  backbone_options.max_tokens =
      std::max<int64_t>(engine_options.prefill_chunk, engine_options.max_batch);
  loaded.backbone = LoadCpuBackbone(loaded.path, loaded.pool.get(), backbone_options);
  const auto prunes = [](const std::string& arm) {
    return arm != kAutoArm && ParseArm(arm).prefill_fingerprint != 0;
  };
  if (std::any_of(arms.begin(), arms.end(), prunes)) {
    engine_options.prefill_costs =
        ResolvePrefillCosts(flags, loaded.path, loaded.backbone.get(), loaded.pool.get());
  }
  loaded.engine = std::make_unique<Engine>(loaded.backbone.get(), loaded.tokenizer.get(),
                                           loaded.pool.get(), engine_options);
  return loaded;
}

}  // namespace winnow
