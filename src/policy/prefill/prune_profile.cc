#include "policy/prefill/prune_profile.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "policy/builtin_profiles.h"
#include "policy/nearest_name.h"
#include "text/read_file.h"

namespace winnow {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kSchema = "winnow.prune-profile/1";
constexpr int kMost = 65536;  // layers, heads

// Reads one profile, with messages that name it.
class ProfileReader {
 public:
  explicit ProfileReader(std::string_view source) : source_(source) {}

  PruneProfile Read(const json& root) const {
    RefuseUnknown(
        root, "",
        {"schema", "name", "model", "keep", "theta", "v", "layers", "decode", "calibration"});
    if (const json& schema = Get(root, "schema"); schema != kSchema) {
      Refuse("its schema is {}, and \"{}\" is known", schema.dump(), kSchema);
    }
    PruneProfile profile;
    profile.name = Text(root, "name");
    const json& model = Get(root, "model");
    RefuseUnknown(model, "model.", {"hash", "layers", "query_heads", "kv_heads"});
    profile.model_hash = Text(model, "hash");
    profile.n_layers = Int(model, "layers", 1, kMost);
    profile.query_heads = Int(model, "query_heads", 1, kMost);
    profile.kv_heads = Int(model, "kv_heads", 1, kMost);
    profile.keep = Number(Get(root, "keep"), "keep", 1);
    profile.max_change = Number(Get(root, "theta"), "theta", 1);
    profile.min_streak = Int(root, "v", 0, kMost);
    const json& layers = Get(root, "layers");
    if (!layers.is_array() || layers.empty()) Refuse("it monitors no layers");
    for (const json& layer : layers) profile.layers.push_back(ReadLayer(layer, profile));
    return profile;
  }

 private:
  template <typename... Args>
  [[noreturn]] void Refuse(fmt::format_string<Args...> format, Args&&... args) const {
    Throw(ErrorKind::kInput, "the profile {} cannot be used: {}", source_,
          fmt::format(format, std::forward<Args>(args)...));
  }

  const json& Get(const json& object, const char* key) const {
    if (!object.is_object() || !object.contains(key)) Refuse("'{}' is missing", key);
    return object[key];
  }
  void RefuseUnknown(const json& object, const char* path,
                     const std::vector<std::string>& known) const {
    if (!object.is_object()) Refuse("{}no object", path);
    for (const auto& item : object.items()) {
      if (std::find(known.begin(), known.end(), item.key()) != known.end()) continue;
      Refuse("{}", UnknownName("key", path + item.key(), known));
    }
  }
  std::string Text(const json& object, const char* key) const {
    const json& value = Get(object, key);
    if (!value.is_string()) Refuse("'{}' is {}, no text", key, value.dump());
    return value.get<std::string>();
  }
  int Int(const json& object, const char* key, int min, int max) const {
    const json& value = Get(object, key);
    if (!value.is_number_integer() || value < min || value > max) {
      Refuse("'{}' is {}, not a whole number from {} to {}", key, value.dump(), min, max);
    }
    return value.get<int>();
  }
  // In [0, max].
  double Number(const json& value, const char* key, double max) const {
    if (!value.is_number() || !(value >= 0.0 && value <= max)) {
      Refuse("'{}' is {}, not a number from 0 to {}", key, value.dump(), max);
    }
    return value.get<double>();
  }
  std::vector<double> ByHead(const json& layer, const char* key, int heads, double max) const {
    const json& value = Get(layer, key);
    if (!value.is_array()) return std::vector<double>(heads, Number(value, key, max));
    if (std::ssize(value) != heads) {
      Refuse("'{}' has {} numbers for {} heads", key, value.size(), heads);
    }
    std::vector<double> numbers;
    for (const json& number : value) numbers.push_back(Number(number, key, max));
    return numbers;
  }
  PruneProfileLayer ReadLayer(const json& object, const PruneProfile& profile) const {
    RefuseUnknown(object, "layers.", {"layer", "head_weights", "eps", "eps_audit"});
    const int heads = profile.query_heads;
    PruneProfileLayer layer;
    layer.layer = Int(object, "layer", 1, std::max(1, profile.n_layers - 1));
    if (!profile.layers.empty() && layer.layer <= profile.layers.back().layer) {
      Refuse("its layers are not in rising order");
    }
    layer.head_weights = object.contains("head_weights")
                             ? ByHead(object, "head_weights", heads, 1e6)
                             : std::vector<double>(heads, 1);
    if (std::none_of(layer.head_weights.begin(), layer.head_weights.end(),
                     [](double weight) { return weight > 0; })) {
      Refuse("no head of layer {} has a weight", layer.layer);
    }
    const double below_one = std::nextafter(1.0, 0.0);
    layer.eps = ByHead(object, "eps", heads, below_one);
    layer.eps_audit = ByHead(object, "eps_audit", heads, below_one);
    return layer;
  }

  std::string_view source_;
};

// One number for equal ones.
ordered_json ByHeadJson(const std::vector<double>& numbers) {
  const bool equal =
      std::adjacent_find(numbers.begin(), numbers.end(), std::not_equal_to<>()) == numbers.end();
  if (equal && !numbers.empty()) return numbers.front();
  return numbers;
}

void CheckGlobal(const PruneModel& model, int layer, ErrorKind kind, std::string_view source) {
  const std::vector<int>& global = model.global_layers;
  if (layer >= model.n_layers || std::find(global.begin(), global.end(), layer) == global.end()) {
    Throw(kind, "{} monitors layer {}, and this model of {} layers has {}", source, layer,
          model.n_layers,
          layer >= model.n_layers ? "nothing after it to save" : "a window of attention there");
  }
}

}  // namespace

void PruneProfile::CheckModel(const PruneModel& model, std::string_view source) const {
  if (model_hash != model.hash) {
    Throw(ErrorKind::kInput,
          "the profile {} was made for the model with hash {}, and this one's is {}", source,
          model_hash, model.hash);
  }
  if (n_layers != model.n_layers || query_heads != model.query_heads ||
      kv_heads != model.kv_heads) {
    Throw(ErrorKind::kInput,
          "the profile {} was made for {} layers, {} query heads and {} KV heads, and this model "
          "has {}, {} and {}",
          source, n_layers, query_heads, kv_heads, model.n_layers, model.query_heads,
          model.kv_heads);
  }
  for (const PruneProfileLayer& layer : layers) {
    CheckGlobal(model, layer.layer, ErrorKind::kInput, fmt::format("the profile {}", source));
  }
}

uint64_t PruneProfile::Fingerprint() const {
  const std::string text = ToJson(*this).dump();
  return HashBytes(std::as_bytes(std::span(text))).low | 1;
}

ordered_json ToJson(const PruneProfile& profile) {
  ordered_json layers = ordered_json::array();
  for (const PruneProfileLayer& layer : profile.layers) {
    layers.push_back({{"layer", layer.layer},
                      {"head_weights", ByHeadJson(layer.head_weights)},
                      {"eps", ByHeadJson(layer.eps)},
                      {"eps_audit", ByHeadJson(layer.eps_audit)}});
  }
  return {{"schema", kSchema},
          {"name", profile.name},
          {"model",
           {{"hash", profile.model_hash},
            {"layers", profile.n_layers},
            {"query_heads", profile.query_heads},
            {"kv_heads", profile.kv_heads}}},
          {"keep", profile.keep},
          {"theta", profile.max_change},
          {"v", profile.min_streak},
          {"layers", std::move(layers)}};
}

PruneProfile PruneProfileFromJson(const json& json, std::string_view source) {
  return ProfileReader(source).Read(json);
}

PruneProfile LoadPruneProfile(const std::string& path) {
  std::string text;
  if (const int error = ReadFile(path, &text); error != 0) {
    Throw(ErrorKind::kInput, "cannot read the profile {}: {}", path, std::strerror(error));
  }
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) Throw(ErrorKind::kInput, "the profile {} is no JSON", path);
  return PruneProfileFromJson(root, path);
}

PruneProfile UncalibratedProfile(const PruneParams& params, const PruneModel& model) {
  PruneProfile profile{.name = "uncalibrated",
                       .model_hash = model.hash,
                       .n_layers = model.n_layers,
                       .query_heads = model.query_heads,
                       .kv_heads = model.kv_heads,
                       .layers = {}};
  std::vector<int> layers = params.layers;
  if (layers.empty()) {
    for (const int layer : model.global_layers) {
      if (layer < model.n_layers) layers.push_back(layer);
    }
  }
  if (layers.empty()) Throw(ErrorKind::kUsage, "this model has no layer that pruning can monitor");
  for (const int layer : layers) {
    CheckGlobal(model, layer, ErrorKind::kUsage, "the arm");
    profile.layers.push_back(
        {.layer = layer,
         .head_weights = std::vector<double>(model.query_heads, 1),
         .eps = std::vector<double>(model.query_heads, params.eps.value()),
         .eps_audit = std::vector<double>(model.query_heads, params.eps_audit.value())});
  }
  return profile;
}

std::span<const PruneProfile> BuiltInPruneProfiles() {
  static const std::vector<PruneProfile> kProfiles = [] {
    std::vector<PruneProfile> profiles;
    for (const std::string_view text : BuiltinPruneProfileTexts()) {
      profiles.push_back(PruneProfileFromJson(json::parse(text), "that is built in"));
    }
    return profiles;
  }();
  return kProfiles;
}

PruneProfile FindPruneProfile(const PruneParams& params, const PruneModel& model,
                              std::span<const PruneProfile> built_in) {
  if (params.uncalibrated) return UncalibratedProfile(params, model);
  const std::string wanted = params.profile.empty() ? "late" : params.profile;
  bool known_elsewhere = false;
  for (const PruneProfile& profile : built_in) {
    if (profile.name != wanted) continue;
    known_elsewhere = true;
    if (profile.model_hash != model.hash) continue;
    profile.CheckModel(model, wanted);
    return profile;
  }
  if (params.profile.empty() || known_elsewhere) {
    Throw(ErrorKind::kUsage,
          "pruning is refused: no profile{} is built in for this model, and which layers and heads "
          "look is the model's own. Make one (winnow calibrate), or give the arm uncalibrated=1",
          params.profile.empty() ? "" : fmt::format(" '{}'", wanted));
  }
  PruneProfile profile = LoadPruneProfile(params.profile);
  profile.CheckModel(model, params.profile);
  return profile;
}

}  // namespace winnow
