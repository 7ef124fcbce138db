#include "model/architecture.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "core/error.h"

namespace winnow {
namespace {

// Gemma stores its norm weights as w - 1; conversion to GGUF adds the one, so a norm is a norm
// here.
constexpr std::array<Architecture, 4> kArchitectures = {{
    {.name = "llama", .rope = RopeKind::kInterleaved, .rope_factors = true, .biases = true},
    {.name = "qwen2"},
    {.name = "qwen3", .qk_norm = true},
    {.name = "gemma3",
     .activation = Activation::kGelu,
     .qk_norm = true,
     .post_norms = true,
     .scaled_embedding = true,
     .logit_softcap = true,
     .local_period = 6,
     .width_scaled_layers = 62},  // the 27B model
}};

constexpr int64_t kMaxDimension = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 4096;
constexpr double kLocalRopeBase = 10000.0;  // of local layers, where the file does not say

// Reads keys that begin with the architecture's name.
class Keys {
 public:
  Keys(const GgufFile& file, std::string_view architecture)
      : file_(file), prefix_(std::string(architecture) + ".") {}

  std::string Name(std::string_view key) const { return prefix_ + std::string(key); }

  // A positive integer; `fallback` where the key is absent, an error where there is none.
  int64_t Count(std::string_view key, std::optional<int64_t> fallback = {},
                int64_t maximum = kMaxDimension) const {
    std::optional<int64_t> value;
    if (const auto values = file_.Integers(Name(key))) {
      value = SameForAllLayers(key, *values);
    } else {
      value = file_.Integer(Name(key));
    }
    if (!value) value = fallback;
    if (!value) Throw(ErrorKind::kInput, "{}: the metadata lacks '{}'", file_.path(), Name(key));
    if (*value < 1 || *value > maximum) {
      Throw(ErrorKind::kInput, "{}: '{}' is {}, which makes no sense", file_.path(), Name(key),
            *value);
    }
    return *value;
  }
  double Real(std::string_view key, std::optional<double> fallback = {}) const {
    std::optional<double> value = file_.Real(Name(key));
    if (!value) value = fallback;
    if (!value) Throw(ErrorKind::kInput, "{}: the metadata lacks '{}'", file_.path(), Name(key));
    if (!std::isfinite(*value)) {
      Throw(ErrorKind::kInput, "{}: '{}' is not a finite number", file_.path(), Name(key));
    }
    return *value;
  }
  int64_t IntegerOr(std::string_view key, int64_t fallback) const {
    return file_.Integer(Name(key)).value_or(fallback);
  }
  template <typename... Args>
  [[noreturn]] void Refuse(fmt::format_string<Args...> format, Args&&... args) const {
    Throw(ErrorKind::kInput, "{}: {}", file_.path(),
          fmt::format(format, std::forward<Args>(args)...));
  }
  const GgufFile& file() const { return file_; }

 private:
  std::optional<int64_t> SameForAllLayers(std::string_view key,
                                          const std::vector<int64_t>& values) const {
    for (int64_t value : values) {
      if (value != values.front()) {
        Throw(ErrorKind::kInput, "{}: '{}' differs between layers, which is not supported",
              file_.path(), Name(key));
      }
    }
    return values.empty() ? std::nullopt : std::optional(values.front());
  }

  const GgufFile& file_;
  std::string prefix_;
};

void RefuseUnsupported(const Keys& keys) {
  if (keys.IntegerOr("expert_count", 0) > 0) keys.Refuse("mixtures of experts are not supported");
  if (keys.IntegerOr("nextn_predict_layers", 0) > 0) {
    keys.Refuse("layers that predict further tokens (nextn) are not supported");
  }
  if (!keys.file().Bool(keys.Name("attention.causal")).value_or(true)) {
    keys.Refuse("attention that is not causal is not supported");
  }
}

float RopeBase(const Keys& keys, const char* name, double otherwise) {
  const double base = keys.Real(name, otherwise);
  if (!(base >= 1.0 && base <= 1e12)) keys.Refuse("a RoPE base of {}; 1 to 1e12 makes sense", base);
  return static_cast<float>(base);
}

// The rotation of layers that see everything.
RopeConfig ReadRope(const Keys& keys, const Architecture& architecture, int head_dim) {
  RopeConfig rope{.kind = architecture.rope, .dims = head_dim};
  if (const int64_t dims = keys.IntegerOr("rope.dimension_count", head_dim); dims != head_dim) {
    keys.Refuse("{} rotated dimensions in heads of {}: partial rotation is not supported", dims,
                head_dim);
  }
  if (head_dim % 2 != 0) keys.Refuse("heads of {} dimensions cannot be rotated in pairs", head_dim);
  rope.base = RopeBase(keys, "rope.freq_base", 10000.0);
  const std::string type = keys.file().String(keys.Name("rope.scaling.type")).value_or("linear");
  if (type != "linear" && type != "none") {
    keys.Refuse("RoPE scaling '{}' is not supported (none, linear and llama3 factors are)", type);
  }
  if (keys.Real("rope.scaling.attn_factor", 1.0) != 1.0) {
    keys.Refuse("RoPE scaling with an attention factor is not supported");
  }
  const double factor = keys.Real("rope.scaling.factor", keys.Real("rope.scale_linear", 0.0));
  if (factor < 0) keys.Refuse("the RoPE scaling factor is {}", factor);
  if (type == "linear" && factor > 0) rope.scale = 1.0f / static_cast<float>(factor);
  if (keys.file().FindTensor("rope_freqs.weight") != nullptr) {
    if (!architecture.rope_factors) {
      keys.Refuse("{} models have no RoPE factors, yet there is a tensor '{}'", architecture.name,
                  "rope_freqs.weight");
    }
    rope.frequency_factors = true;
  }
  return rope;
}

// Which layers are local: an array in the file, else a period.
std::vector<bool> LocalLayers(const Keys& keys, int n_layers, int period) {
  constexpr std::string_view kKey = "attention.sliding_window_pattern";
  std::vector<bool> local(n_layers);
  if (const auto values = keys.file().Integers(keys.Name(kKey))) {
    if (static_cast<int>(values->size()) != n_layers) {
      keys.Refuse("'{}' has {} entries for {} layers", keys.Name(kKey), values->size(), n_layers);
    }
    for (int i = 0; i < n_layers; ++i) local[i] = (*values)[i] != 0;
    return local;
  }
  const int64_t n = keys.IntegerOr(kKey, period);
  if (n < 0) keys.Refuse("'{}' is {}", keys.Name(kKey), n);
  for (int i = 0; i < n_layers; ++i) local[i] = n == 0 || i % n < n - 1;  // 0: all are local
  return local;
}

std::vector<LayerConfig> ReadLayers(const Keys& keys, const Architecture& architecture,
                                    int n_layers, int head_dim) {
  const LayerConfig global{.rope = ReadRope(keys, architecture, head_dim)};
  std::vector<LayerConfig> layers(n_layers, global);
  if (architecture.local_period == 0) return layers;
  const int64_t window = keys.IntegerOr("attention.sliding_window", 0);
  if (window < 0) keys.Refuse("the sliding window has {} tokens", window);
  if (window == 0) return layers;
  for (std::string_view key :
       {"attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"}) {
    if (keys.IntegerOr(key, head_dim) != head_dim) {
      keys.Refuse("local layers with heads of another size are not supported");
    }
  }
  const std::vector<bool> local = LocalLayers(keys, n_layers, architecture.local_period);
  for (int i = 0; i < n_layers; ++i) {
    if (!local[i]) continue;
    layers[i].window = window;
    layers[i].rope.base = RopeBase(keys, "rope.freq_base_swa", kLocalRopeBase);
    layers[i].rope.scale = 1.0f;  // scaling applies to global layers only
  }
  return layers;
}

int ReadVocabulary(const Keys& keys) {
  if (const auto tokens = keys.file().ArrayLength("tokenizer.ggml.tokens");
      tokens.value_or(0) > 0) {
    return static_cast<int>(*tokens);
  }
  return static_cast<int>(keys.Count("vocab_size"));
}

}  // namespace

std::span<const Architecture> KnownArchitectures() { return kArchitectures; }

const Architecture& FindArchitecture(const GgufFile& file) {
  const auto name = file.String("general.architecture");
  if (!name) {
    Throw(ErrorKind::kInput, "{}: the metadata lacks 'general.architecture'", file.path());
  }
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == *name) return architecture;
    known += known.empty() ? "" : ", ";
    known += architecture.name;
  }
  Throw(ErrorKind::kInput, "{}: the architecture '{}' is not known; known are {}", file.path(),
        *name, known);
}

ModelConfig ReadModelConfig(const GgufFile& file) {
  const Architecture& architecture = FindArchitecture(file);
  const Keys keys(file, architecture.name);
  RefuseUnsupported(keys);

  ModelConfig config;
  config.architecture = architecture.name;
  config.name = file.String("general.name").value_or("");
  config.n_layers = static_cast<int>(keys.Count("block_count", {}, kMaxLayers));
  config.hidden = static_cast<int>(keys.Count("embedding_length"));
  config.query_heads = static_cast<int>(keys.Count("attention.head_count"));
  config.kv_heads = static_cast<int>(keys.Count("attention.head_count_kv", config.query_heads));
  if (config.query_heads % config.kv_heads != 0) {
    keys.Refuse("{} query heads cannot share {} KV heads", config.query_heads, config.kv_heads);
  }
  const int64_t default_dim = config.hidden / config.query_heads;
  config.head_dim = static_cast<int>(keys.Count("attention.key_length", default_dim));
  if (const int64_t values = keys.Count("attention.value_length", default_dim);
      values != config.head_dim) {
    keys.Refuse("keys of {} and values of {} dimensions: they must be equal", config.head_dim,
                values);
  }
  config.feed_forward = static_cast<int>(keys.Count("feed_forward_length"));
  config.vocabulary = ReadVocabulary(keys);
  config.context_length = keys.Count("context_length", {}, std::numeric_limits<int32_t>::max());
  config.norm_epsilon = static_cast<float>(keys.Real("attention.layer_norm_rms_epsilon"));
  if (config.norm_epsilon < 0) keys.Refuse("the norm's epsilon is {}", config.norm_epsilon);

  const bool by_width = config.n_layers == architecture.width_scaled_layers;
  const auto scale_dim = static_cast<float>(by_width ? default_dim : config.head_dim);
  config.attention_scale = 1.0f / std::sqrt(scale_dim);
  if (architecture.scaled_embedding) {
    config.embedding_scale = std::sqrt(static_cast<float>(config.hidden));
  }
  if (architecture.logit_softcap) {
    config.logit_softcap = static_cast<float>(keys.Real("final_logit_softcapping", 0.0));
  }
  config.layers = ReadLayers(keys, architecture, config.n_layers, config.head_dim);
  return config;
}

}  // namespace winnow
