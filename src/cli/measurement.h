// What is measured once on a machine and kept in the user's cache folder: the key that says what it
// was measured for, and the file.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "cli/command.h"
#include "cli/user_cache.h"

namespace winnow {

struct MeasurementKey {
  std::string folder;  // in the cache folder, for all of one kind
  std::string model_hash;
  std::string processor;
  int threads = 0;
  std::string kv_type;
  std::string subject;  // what else matters
  std::string version;  // of the program

  // In the cache folder.
  std::string FileName() const;
};
MeasurementKey MakeMeasurementKey(std::string folder, std::string model_hash,
                                  const ModelFlags& flags, std::string subject);

// {"schema", "of": the key, …body}
std::string FormatMeasurement(std::string_view schema, const MeasurementKey& key,
                              const nlohmann::ordered_json& body);
// Nothing if the text is damaged, of another schema, or of another key.
std::optional<nlohmann::json> ParseMeasurement(const std::string& text, std::string_view schema,
                                               const MeasurementKey& key);

// "FILE: passed over, it is not `what`"
void WarnOfMeasurement(const UserCache& cache, const MeasurementKey& key, std::string_view what);

// What `parse` makes of the file in the cache folder; nothing if there is none. One that it refuses
// is passed over with a note that it is not `what`.
template <typename T>
std::optional<T> ReadMeasurement(const UserCache& cache, const MeasurementKey& key,
                                 std::string_view what,
                                 std::optional<T> (*parse)(const std::string&,
                                                           const MeasurementKey&)) {
  const std::optional<std::string> text = cache.Read(key.FileName());
  if (!text.has_value()) return std::nullopt;
  std::optional<T> known = parse(*text, key);
  if (!known.has_value()) WarnOfMeasurement(cache, key, what);
  return known;
}

}  // namespace winnow
