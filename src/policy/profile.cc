#include "policy/profile.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/error.h"
#include "policy/arm.h"
#include "policy/auto_arm.h"
#include "policy/builtin_profiles.h"
#include "policy/nearest_name.h"

namespace winnow {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr char kSchema[] = "winnow.profile/1";
constexpr int kMost = 1 << 20;  // of layers, heads and dimensions

// One object of the file. Every key that is read is known; Finish refuses the others.
class Reader {
 public:
  Reader(const json& value, std::string source, std::string path)
      : source_(std::move(source)), path_(std::move(path)), value_(value) {
    if (!value.is_object()) {
      Throw(ErrorKind::kInput, "{}: {} must be an object", source_,
            path_.empty() ? "the profile" : path_);
    }
  }

  Reader Object(const char* key) { return {At(key), source_, Name(key)}; }
  std::string String(const char* key) {
    const json& value = At(key);
    if (!value.is_string()) Fail(key, "must be a text");
    return value.get<std::string>();
  }
  int64_t Integer(const char* key, int64_t low, int64_t high) {
    const json& value = At(key);
    if (!value.is_number_integer() || value.get<int64_t>() < low || value.get<int64_t>() > high) {
      Fail(key, fmt::format("must be a whole number from {} to {}", low, high));
    }
    return value.get<int64_t>();
  }
  // In [low, high], or in (low, high].
  double Number(const char* key, double low, double high, bool above_low = false) {
    const json& value = At(key);
    const double number =
        value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (!(number >= low && number <= high) || (above_low && number == low)) {
      Fail(key, fmt::format("must be a number {} {} and at most {}",
                            above_low ? "above" : "of at least", low, high));
    }
    return number;
  }
  bool Bool(const char* key) {
    const json& value = At(key);
    if (!value.is_boolean()) Fail(key, "must be true or false");
    return value.get<bool>();
  }
  const json& Array(const char* key) {
    const json& value = At(key);
    if (!value.is_array()) Fail(key, "must be an array");
    return value;
  }

  void Finish() const {
    for (const auto& item : value_.items()) {
      if (std::find(known_.begin(), known_.end(), item.key()) != known_.end()) continue;
      Throw(ErrorKind::kInput, "{}: unknown key '{}'{}", source_, Name(item.key()),
            DidYouMean(item.key(), known_));
    }
  }

 private:
  const json& At(const char* key) {
    known_.emplace_back(key);
    const auto found = value_.find(key);
    if (found == value_.end()) Throw(ErrorKind::kInput, "{}: '{}' is missing", source_, Name(key));
    return *found;
  }
  std::string Name(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }
  [[noreturn]] void Fail(const char* key, const std::string& what) const {
    Throw(ErrorKind::kInput, "{}: '{}' {}", source_, Name(key), what);
  }

  std::string source_;
  std::string path_;
  const json& value_;
  std::vector<std::string> known_;
};

ProfileModel ReadModel(Reader reader) {
  ProfileModel model;
  model.name = reader.String("name");
  model.hash = reader.String("hash");
  model.layers = static_cast<int>(reader.Integer("layers", 1, kMost));
  model.query_heads = static_cast<int>(reader.Integer("query_heads", 1, kMost));
  model.kv_heads = static_cast<int>(reader.Integer("kv_heads", 1, kMost));
  model.head_dim = static_cast<int>(reader.Integer("head_dim", 1, kMost));
  reader.Finish();
  return model;
}

FidelityTarget ReadTarget(Reader reader) {
  FidelityTarget target;
  target.kl = reader.Number("kl", 0, 1e6, /*above_low=*/true);
  target.top1_agreement = reader.Number("top1_agreement", 0, 1);
  reader.Finish();
  return target;
}

ProfileFigures ReadFigures(Reader reader) {
  constexpr int64_t kMostPositions = int64_t{1} << 53;
  ProfileFigures figures;
  figures.prompts = reader.Integer("prompts", 0, kMostPositions);
  figures.positions = reader.Integer("positions", 0, kMostPositions);
  // Rounding may leave a mean of nothing but zeros a little below 0.
  figures.kl = reader.Number("kl", -1e-6, 1e6);
  figures.top1_agreement = reader.Number("top1_agreement", 0, 1);
  figures.perplexity_ratio = reader.Number("perplexity_ratio", 0, 1e300);
  figures.bytes_ratio = reader.Number("bytes_ratio", 0, 1e6);
  reader.Finish();
  return figures;
}

// [{"layer": from 1, "kv_heads": [from 0]}]
std::vector<CompletionGate> ReadGates(const json& list, const ProfileModel& model,
                                      const std::string& source) {
  std::vector<CompletionGate> gates;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string path = fmt::format("decode.completion_off[{}]", i);
    Reader reader(list[i], source, path);
    const auto layer = static_cast<int>(reader.Integer("layer", 1, model.layers)) - 1;
    for (const json& head : reader.Array("kv_heads")) {
      const bool is_head = head.is_number_integer() && head.get<int64_t>() >= 0 &&
                           head.get<int64_t>() < model.kv_heads;
      if (!is_head) {
        Throw(ErrorKind::kInput, "{}: '{}.kv_heads' holds heads from 0 to {}", source, path,
              model.kv_heads - 1);
      }
      gates.push_back({layer, head.get<int>()});
    }
    reader.Finish();
  }
  std::sort(gates.begin(), gates.end());
  return gates;
}

void CheckArm(const ModelProfile& profile, const std::string& source) {
  if (profile.arm == kAutoArm) {
    Throw(ErrorKind::kInput, "{}: 'decode.arm' is auto, which is what the profile has to say",
          source);
  }
  try {
    ParseArm(profile.FullArm());
  } catch (const Error& error) {
    Throw(ErrorKind::kInput, "{}: 'decode.arm': {}", source, error.what());
  }
}

void ReadDecode(Reader reader, const std::string& source, ModelProfile* profile) {
  profile->arm = reader.String("arm");
  profile->completion_off = ReadGates(reader.Array("completion_off"), profile->model, source);
  profile->target = ReadTarget(reader.Object("target"));
  profile->calibration = ReadFigures(reader.Object("calibration"));
  profile->test = ReadFigures(reader.Object("test"));
  const json& missed = reader.Array("missed");
  profile->search_complete = reader.Bool("search_complete");
  reader.Finish();
  CheckArm(*profile, source);
  if (missed != json(profile->Missed())) {
    Throw(ErrorKind::kInput, "{}: 'decode.missed' contradicts the figures, by which it is {}",
          source, json(profile->Missed()).dump());
  }
}

ordered_json FiguresJson(const ProfileFigures& figures) {
  return {{"prompts", figures.prompts},
          {"positions", figures.positions},
          {"kl", figures.kl},
          {"top1_agreement", figures.top1_agreement},
          {"perplexity_ratio", figures.perplexity_ratio},
          {"bytes_ratio", figures.bytes_ratio}};
}

// A gate of a whole layer names its heads.
ordered_json GatesJson(const ModelProfile& profile) {
  ordered_json list = ordered_json::array();
  int last_layer = -1;
  for (const CompletionGate& gate : profile.completion_off) {
    if (gate.layer != last_layer) {
      list.push_back({{"layer", gate.layer + 1}, {"kv_heads", ordered_json::array()}});
      last_layer = gate.layer;
    }
    ordered_json& heads = list.back()["kv_heads"];
    if (gate.kv_head >= 0) {
      heads.push_back(gate.kv_head);
      continue;
    }
    for (int head = 0; head < profile.model.kv_heads; ++head) heads.push_back(head);
  }
  return list;
}

ordered_json DecodeJson(const ModelProfile& profile) {
  return {
      {"arm", profile.arm},
      {"completion_off", GatesJson(profile)},
      {"target", {{"kl", profile.target.kl}, {"top1_agreement", profile.target.top1_agreement}}},
      {"calibration", FiguresJson(profile.calibration)},
      {"test", FiguresJson(profile.test)},
      {"missed", profile.Missed()},
      {"search_complete", profile.search_complete}};
}

}  // namespace

double LeastAgreement(const FidelityTarget& target, int64_t positions) {
  const double t = target.top1_agreement;
  return positions == 0 ? t : t - 1.645 * std::sqrt(t * (1 - t) / static_cast<double>(positions));
}

ProfileModel DescribeModel(const ModelConfig& config, const Hash128& hash) {
  return {.name = config.name,
          .hash = hash.Hex(),
          .layers = config.n_layers,
          .query_heads = config.query_heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim};
}

std::string ModelProfile::FullArm() const {
  if (completion_off.empty()) return arm;
  // A parameter of the residual, which comes before the certificate.
  std::string full = ParseArm(arm).resolved;
  full.insert(std::min(full.find(",certify="), full.size()), ",off=" + FormatGates(completion_off));
  return full;
}

std::vector<std::string> ModelProfile::Missed() const {
  std::vector<std::string> missed;
  if (!calibration.MeetsKl(target) || !test.MeetsKl(target)) missed.emplace_back("kl");
  if (!calibration.MeetsAgreement(target) || !test.MeetsAgreement(target)) {
    missed.emplace_back("top1_agreement");
  }
  return missed;
}

std::string ModelProfile::Refusal() const {
  if (arm == "dense") return "no arm was found";
  if (test.positions == 0) return "it was not tested on separate prompts";
  if (Missed().empty()) return "";
  const bool at_test = !test.Meets(target);
  const ProfileFigures& figures = at_test ? test : calibration;
  return fmt::format(
      "on its {} prompts the mean KL was {:.2g} and the top-1 agreement {:.3f}, and the target is "
      "{:.2g} and {:.3f}",
      at_test ? "test" : "calibration", figures.kl, figures.top1_agreement, target.kl,
      target.top1_agreement);
}

ordered_json ToJson(const ModelProfile& profile) {
  const ProfileModel& model = profile.model;
  return {{"schema", kSchema},
          {"model",
           {{"name", model.name},
            {"hash", model.hash},
            {"layers", model.layers},
            {"query_heads", model.query_heads},
            {"kv_heads", model.kv_heads},
            {"head_dim", model.head_dim}}},
          {"decode", DecodeJson(profile)},
          {"made_by", {{"version", profile.version}, {"command", profile.command}}}};
}

std::string FormatProfile(const ModelProfile& profile) {
  return ToJson(profile).dump(2, ' ', /*ensure_ascii=*/false,
                              ordered_json::error_handler_t::replace) +
         "\n";
}

ModelProfile ParseProfile(std::string_view text, const std::string& source) {
  json value;
  try {
    value = json::parse(text);
  } catch (const json::parse_error& error) {
    Throw(ErrorKind::kInput, "{}: not a profile: {}", source, error.what());
  }
  Reader reader(value, source, "");
  const std::string schema = reader.String("schema");
  if (schema != kSchema) {
    Throw(ErrorKind::kInput, "{}: the schema is '{}'; this version reads {}", source, schema,
          kSchema);
  }
  ModelProfile profile;
  profile.model = ReadModel(reader.Object("model"));
  ReadDecode(reader.Object("decode"), source, &profile);
  Reader made_by = reader.Object("made_by");
  profile.version = made_by.String("version");
  profile.command = made_by.String("command");
  made_by.Finish();
  reader.Finish();
  return profile;
}

void CheckProfile(const ModelProfile& profile, const ProfileModel& model,
                  const std::string& source) {
  if (profile.model.hash != model.hash) {
    Throw(ErrorKind::kInput,
          "{}: the profile is of another model: it was made for '{}' with hash {}, and this one is "
          "'{}' with hash {}",
          source, profile.model.name, profile.model.hash, model.name, model.hash);
  }
  const struct {
    const char* name;
    int of_profile;
    int of_model;
  } dimensions[] = {{"layers", profile.model.layers, model.layers},
                    {"query_heads", profile.model.query_heads, model.query_heads},
                    {"kv_heads", profile.model.kv_heads, model.kv_heads},
                    {"head_dim", profile.model.head_dim, model.head_dim}};
  for (const auto& dimension : dimensions) {
    if (dimension.of_profile == dimension.of_model) continue;
    Throw(ErrorKind::kInput, "{}: the profile says {} {}, the model has {}", source, dimension.name,
          dimension.of_profile, dimension.of_model);
  }
}

const ModelProfile* FindBuiltinProfile(const std::string& hash) {
  static const std::vector<ModelProfile> kProfiles = [] {
    std::vector<ModelProfile> profiles;
    for (const std::string_view text : BuiltinProfileTexts()) {
      profiles.push_back(ParseProfile(text, "a built-in profile"));
    }
    return profiles;
  }();
  for (const ModelProfile& profile : kProfiles) {
    if (profile.model.hash == hash) return &profile;
  }
  return nullptr;
}

}  // namespace winnow
