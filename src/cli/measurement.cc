#include "cli/measurement.h"

#include <fmt/format.h>

#include <span>
#include <utility>

#include "cli/output.h"
#include "core/hash.h"
#include "core/processor.h"

namespace winnow {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// The key as the file holds it.
ordered_json ToJson(const MeasurementKey& key) {
  return {{"version", key.version}, {"model_hash", key.model_hash}, {"processor", key.processor},
          {"threads", key.threads}, {"kv_type", key.kv_type},       {"subject", key.subject}};
}

}  // namespace

std::string MeasurementKey::FileName() const {
  const std::string text = ToJson(*this).dump();
  return fmt::format("{}/{}.json", folder, HashBytes(std::as_bytes(std::span(text))).Hex());
}

MeasurementKey MakeMeasurementKey(std::string folder, std::string model_hash,
                                  const ModelFlags& flags, std::string subject) {
  return {.folder = std::move(folder),
          .model_hash = std::move(model_hash),
          .processor = ProcessorName(),
          .threads = flags.threads > 0 ? flags.threads : DefaultThreads(),
          .kv_type = flags.kv_type,
          .subject = std::move(subject),
          .version = WINNOW_VERSION};
}

std::string FormatMeasurement(std::string_view schema, const MeasurementKey& key,
                              const ordered_json& body) {
  ordered_json file = {{"schema", schema}, {"of", ToJson(key)}};
  file.update(body);
  return DumpJson(file, /*indent=*/true) + "\n";
}

std::optional<json> ParseMeasurement(const std::string& text, std::string_view schema,
                                     const MeasurementKey& key) {
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object() || value.value("schema", json()) != schema) return std::nullopt;
  if (value.value("of", json()) != json(ToJson(key))) return std::nullopt;
  return value;
}

void WarnOfMeasurement(const UserCache& cache, const MeasurementKey& key, std::string_view what) {
  Warn(fmt::format("{}: passed over, it is not {}", cache.PathOf(key.FileName()).string(), what));
}

}  // namespace winnow
