#include "cli/prefill_costs_file.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "cli/output.h"
#include "engine/prefill_costs.h"
#include "model/model_hash.h"

namespace winnow {
namespace {

using nlohmann::json;

constexpr char kSchema[] = "winnow.prefill_costs/1";

// By their names in the file.
struct Entry {
  const char* name;
  double PrefillCosts::*member;
};
constexpr Entry kEntries[] = {{"last_linear", &PrefillCosts::last_linear},
                              {"score", &PrefillCosts::score},
                              {"remove", &PrefillCosts::remove},
                              {"copy", &PrefillCosts::copy}};

// Of a token, a pair of tokens or a byte: no machine takes a second.
bool IsCost(double seconds) { return seconds >= 0 && seconds < 1; }

}  // namespace

MeasurementKey MakePrefillCostsKey(std::string model_hash, const ModelFlags& flags) {
  return MakeMeasurementKey("prefill-costs", std::move(model_hash), flags,
                            fmt::format("chunks of {} tokens", flags.prefill_chunk));
}

std::string FormatPrefillCosts(const MeasurementKey& key, const PrefillCosts& costs) {
  nlohmann::ordered_json seconds = {{"linear", costs.layer.linear},
                                    {"quadratic", costs.layer.quadratic}};
  for (const Entry& entry : kEntries) seconds[entry.name] = costs.*entry.member;
  return FormatMeasurement(kSchema, key, {{"seconds", std::move(seconds)}});
}

std::optional<PrefillCosts> ParsePrefillCosts(const std::string& text, const MeasurementKey& key) {
  const std::optional<json> value = ParseMeasurement(text, kSchema, key);
  if (!value.has_value()) return std::nullopt;
  PrefillCosts costs;
  try {
    const json& seconds = value->at("seconds");
    costs.layer = {.linear = seconds.at("linear").get<double>(),
                   .quadratic = seconds.at("quadratic").get<double>()};
    for (const Entry& entry : kEntries) {
      costs.*entry.member = seconds.at(entry.name).get<double>();
      if (!IsCost(costs.*entry.member)) return std::nullopt;
    }
  } catch (const json::exception&) {
    return std::nullopt;
  }
  const bool usable = IsCost(costs.layer.linear) && IsCost(costs.layer.quadratic) && costs.known();
  return usable ? std::optional(costs) : std::nullopt;
}

PrefillCosts ResolvePrefillCosts(const ModelFlags& flags, const std::string& path,
                                 Backbone* backbone, ThreadPool* pool) {
  const UserCache cache;
  const MeasurementKey key = MakePrefillCostsKey(HashModelFile(path).Hex(), flags);
  if (const auto known = ReadMeasurement(
          cache, key, "what prefill costs for this model and machine", ParsePrefillCosts)) {
    return *known;
  }
  Warn("measuring, once for this model and machine, what prefill costs");
  const std::optional<PrefillCosts> measured =
      MeasurePrefillCosts(backbone, pool, ParseDType(flags.kv_type), flags.prefill_chunk);
  if (!measured.has_value()) {
    Warn("nothing is known of what prefill costs: whether pruning pays is not foreseen");
    return {};
  }
  if (!cache.Write(key.FileName(), FormatPrefillCosts(key, *measured))) {
    Warn("what prefill costs could not be kept: it is measured again the next time");
  }
  return *measured;
}

}  // namespace winnow
