#include "cli/auto_profile.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/generation.h"
#include "cli/output.h"
#include "core/dtype.h"
#include "core/error.h"
#include "model/model_hash.h"
#include "policy/arm.h"

namespace winnow {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr char kBreakEvenSchema[] = "winnow.break_even/1";

// Nothing if the machine is too busy to tell: then nothing is kept either.
std::optional<int64_t> Measured(const ModelFlags& flags, const ModelProfile& profile,
                                const ModelConfig& config, ThreadPool* pool,
                                const UserCache& cache) {
  const MeasurementKey key = MakeBreakEvenKey(profile, flags);
  if (const std::optional<BreakEven> known = ReadBreakEven(cache, key)) return known->tokens;
  // The model's context, not this run's: the figure is kept for all.
  const std::optional<BreakEven> measured = MeasureBreakEven(
      pool, config, ParseDType(flags.kv_type), profile.FullArm(), config.context_length);
  if (!measured.has_value()) return std::nullopt;
  cache.Write(key.FileName(), FormatBreakEven(key, *measured));
  return measured->tokens;
}

}  // namespace

void AddAutoFlags(CLI::App& command, ModelFlags& flags) {
  const std::string group = "The arm auto";
  command
      .add_option("--profile", flags.profile,
                  "Model's profile, as `winnow calibrate` writes it; by default the one that it "
                  "has kept, or a built-in one")
      ->type_name("FILE")
      ->check(NotEmpty())
      ->group(group);
  command
      .add_option("--break-even", flags.break_even,
                  "Prompt tokens from which the profile's arm runs; by default measured once on "
                  "this machine")
      ->type_name("TOKENS")
      ->check(Between(1, 1 << 30))
      ->group(group);
}

std::string CachedProfileName(const std::string& model_hash) {
  return fmt::format("profiles/{}.json", model_hash);
}

std::optional<FoundProfile> FindProfile(const std::string& profile_flag, const std::string& path,
                                        const ModelConfig& config, const UserCache& cache) {
  const ProfileModel model = DescribeModel(config, HashModelFile(path));
  if (!profile_flag.empty()) {
    FoundProfile found{.profile = ParseProfile(ReadTextFile(profile_flag), profile_flag),
                       .source = "the profile " + profile_flag};
    CheckProfile(found.profile, model, profile_flag);
    return found;
  }
  const std::string name = CachedProfileName(model.hash);
  if (const std::optional<std::string> text = cache.Read(name)) {
    const std::string file = cache.PathOf(name).string();
    try {
      FoundProfile found{.profile = ParseProfile(*text, file), .source = "the profile " + file};
      CheckProfile(found.profile, model, file);
      return found;
    } catch (const Error& error) {
      Warn(fmt::format("passed over a profile: {}", error.what()));
    }
  }
  if (const ModelProfile* builtin = FindBuiltinProfile(model.hash)) {
    return FoundProfile{.profile = *builtin, .source = "the built-in profile"};
  }
  return std::nullopt;
}

MeasurementKey MakeBreakEvenKey(const ModelProfile& profile, const ModelFlags& flags) {
  return MakeMeasurementKey("break-even", profile.model.hash, flags,
                            ParseArm(profile.FullArm()).resolved);
}

std::string FormatBreakEven(const MeasurementKey& key, const BreakEven& measured) {
  ordered_json times = ordered_json::array();
  for (const AttentionTime& time : measured.times) {
    times.push_back({{"depth", time.depth}, {"dense", time.dense}, {"sparse", time.sparse}});
  }
  const ordered_json tokens =
      measured.tokens == kNeverPays ? ordered_json(nullptr) : ordered_json(measured.tokens);
  return FormatMeasurement(kBreakEvenSchema, key,
                           {{"tokens", tokens}, {"seconds_a_layer", std::move(times)}});
}

std::optional<BreakEven> ParseBreakEven(const std::string& text, const MeasurementKey& key) {
  const std::optional<json> value = ParseMeasurement(text, kBreakEvenSchema, key);
  if (!value.has_value()) return std::nullopt;
  BreakEven known;
  try {
    for (const json& time : value->at("seconds_a_layer")) {
      known.times.push_back({.depth = time.at("depth").get<int64_t>(),
                             .dense = time.at("dense").get<double>(),
                             .sparse = time.at("sparse").get<double>()});
    }
    if (const json& tokens = value->at("tokens"); !tokens.is_null()) {
      known.tokens = tokens.get<int64_t>();
    }
  } catch (const json::exception&) {
    return std::nullopt;
  }
  return known.tokens >= 1 ? std::optional(known) : std::nullopt;
}

std::optional<BreakEven> ReadBreakEven(const UserCache& cache, const MeasurementKey& key) {
  return ReadMeasurement(cache, key, "a break-even of this model and machine", ParseBreakEven);
}

AutoArm ResolveAutoArm(const ModelFlags& flags, const std::string& path, const ModelConfig& config,
                       ThreadPool* pool) {
  const UserCache cache;
  AutoArm automatic;
  const std::optional<FoundProfile> found = FindProfile(flags.profile, path, config, cache);
  if (!found.has_value()) return automatic;
  if (const std::string refusal = found->profile.Refusal(); !refusal.empty()) {
    automatic.source = fmt::format("{} says to read everything: {}", found->source, refusal);
    return automatic;
  }
  const std::optional<int64_t> break_even =
      flags.break_even > 0 ? std::optional(flags.break_even)
                           : Measured(flags, found->profile, config, pool, cache);
  if (!break_even.has_value()) {
    automatic.source = fmt::format(
        "the machine is too busy to measure from where on {} pays; --break-even says it",
        found->source);
    return automatic;
  }
  automatic.arm = found->profile.FullArm();
  automatic.source = found->source;
  automatic.break_even_tokens = *break_even;
  return automatic;
}

}  // namespace winnow
