#include "cli/inspect_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/auto_profile.h"
#include "cli/output.h"
#include "cli/user_cache.h"
#include "core/byte_size.h"
#include "core/error.h"
#include "kv/page_layout.h"
#include "model/architecture.h"
#include "model/gguf_file.h"
#include "model/model_info.h"
#include "model/weights.h"
#include "text/tokenizer.h"

namespace winnow {
namespace {

using nlohmann::ordered_json;

constexpr DType kKvTypes[] = {DType::kF16, DType::kF32, DType::kQ8_0};

// The model's numbers: of a model that can be run as it will be run, else what the file states.
struct Shape {
  std::optional<int64_t> context_length, layers, hidden, query_heads, kv_heads, head_dim,
      feed_forward, vocabulary;
};

struct Inspection {
  std::string path;
  std::string name;
  std::string architecture;
  ModelInfo info;           // its config only if `has_config`
  bool has_config = false;  // false: the metadata is refused
  Shape shape;
  bool has_chat_template = false;
  std::string refusal;                   // why the model cannot be run, or ""
  std::optional<int64_t> sparsity_pays;  // prompt tokens from which auto is not dense, where known
  std::string sparsity;                  // the same in words
};

// Runs `read`. A refusal of the file is kept in `refusal` unless there was one before.
template <typename Read>
bool Try(std::string& refusal, Read read) {
  try {
    read();
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInput) throw;
    if (refusal.empty()) refusal = error.what();
    return false;
  }
}

Shape ShapeOf(const ModelConfig& config) {
  return {.context_length = config.context_length,
          .layers = config.n_layers,
          .hidden = config.hidden,
          .query_heads = config.query_heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .feed_forward = config.feed_forward,
          .vocabulary = config.vocabulary};
}

// What the metadata states, for better or worse.
Shape StatedShape(const GgufFile& file, const std::string& architecture) {
  std::string ignored;
  const auto integer = [&](std::string_view key) {
    std::optional<int64_t> value;
    Try(ignored, [&] { value = file.Integer(fmt::format("{}.{}", architecture, key)); });
    return value;
  };
  Shape shape = {.context_length = integer("context_length"),
                 .layers = integer("block_count"),
                 .hidden = integer("embedding_length"),
                 .query_heads = integer("attention.head_count"),
                 .kv_heads = integer("attention.head_count_kv"),
                 .head_dim = integer("attention.key_length"),
                 .feed_forward = integer("feed_forward_length"),
                 .vocabulary = {}};
  Try(ignored, [&] { shape.vocabulary = file.ArrayLength("tokenizer.ggml.tokens"); });
  return shape;
}

// Throws Error(kInput) only where not even the file's header can be read.
Inspection ReadInspection(const std::string& path) {
  const GgufFile file(path);
  Inspection inspection;
  inspection.path = path;
  std::string& refusal = inspection.refusal;
  inspection.has_config = Try(refusal, [&] { inspection.info.config = ReadModelConfig(file); });
  if (inspection.has_config) {
    inspection.shape = ShapeOf(inspection.info.config);
    Try(refusal, [&] { CheckTensors(file, inspection.info.config); });
  }
  CountTensors(file, &inspection.info);
  const auto text = [&](const char* key) {
    std::string value;
    Try(refusal, [&] { value = file.String(key).value_or(""); });
    return value;
  };
  inspection.name = text("general.name");
  inspection.architecture = text("general.architecture");
  if (!inspection.has_config) inspection.shape = StatedShape(file, inspection.architecture);
  inspection.has_chat_template = !text("tokenizer.chat_template").empty();
  Try(refusal, [&] { inspection.has_chat_template = Tokenizer::Load(path)->has_chat_template(); });
  return inspection;
}

// What runs with the default flags have measured on this machine; nothing is measured here.
void ReadSparsity(const std::string& file, Inspection* inspection) {
  const UserCache cache;
  const auto found = FindProfile("", file, inspection->info.config, cache);
  if (!found.has_value()) {
    inspection->sparsity = "not known: there is no profile (winnow calibrate makes one)";
    return;
  }
  if (const std::string refusal = found->profile.Refusal(); !refusal.empty()) {
    inspection->sparsity = fmt::format("never: {} says {}", found->source, refusal);
    return;
  }
  const auto measured = ReadBreakEven(cache, MakeBreakEvenKey(found->profile, ModelFlags{}));
  if (!measured.has_value()) {
    inspection->sparsity =
        fmt::format("{}; from where on is measured by the first run", found->source);
  } else if (measured->tokens == kNeverPays) {
    inspection->sparsity = fmt::format("never on this machine ({})", found->source);
  } else {
    inspection->sparsity_pays = measured->tokens;
    inspection->sparsity =
        fmt::format("from {} tokens ({})", FormatCount(measured->tokens), found->source);
  }
}

int64_t LocalLayers(const ModelConfig& config) {
  return std::count_if(config.layers.begin(), config.layers.end(),
                       [](const LayerConfig& layer) { return layer.window > 0; });
}

// The largest window of the local layers, 0 if there are none.
int64_t Window(const ModelConfig& config) {
  int64_t window = 0;
  for (const LayerConfig& layer : config.layers) window = std::max(window, layer.window);
  return window;
}

// Bytes that one more token takes in one layer, or nothing if the type cannot hold the head size.
std::optional<int64_t> LayerBytes(const ModelConfig& config, DType dtype) {
  try {
    return PageLayout(config.kv_heads, kDefaultPageSlots, config.head_dim, dtype).TokenBytes(1);
  } catch (const Error&) {
    return std::nullopt;
  }
}

ordered_json KvBytesJson(const ModelConfig& config, int64_t layers) {
  ordered_json json = ordered_json::object();
  for (const DType dtype : kKvTypes) {
    const std::optional<int64_t> bytes = LayerBytes(config, dtype);
    json[std::string(DTypeName(dtype))] =
        bytes.has_value() ? ordered_json(*bytes * layers) : ordered_json(nullptr);
  }
  return json;
}

using TypeRow = std::pair<std::string, ModelInfo::TypeCount>;

std::vector<TypeRow> TypesBySize(const ModelInfo& info) {
  std::vector<TypeRow> rows(info.types.begin(), info.types.end());
  std::stable_sort(rows.begin(), rows.end(), [](const TypeRow& a, const TypeRow& b) {
    return a.second.bytes > b.second.bytes;
  });
  return rows;
}

ordered_json OrNull(const std::optional<int64_t>& value) {
  return value.has_value() ? ordered_json(*value) : ordered_json(nullptr);
}

// What only a readable configuration tells: null without one.
ordered_json LayersJson(const Inspection& inspection) {
  if (!inspection.has_config) {
    return {{"global_layers", nullptr},
            {"local_layers", nullptr},
            {"window_tokens", nullptr},
            {"kv_bytes_per_token", nullptr},
            {"kv_bytes_per_token_global", nullptr}};
  }
  const ModelConfig& config = inspection.info.config;
  const int64_t local = LocalLayers(config);
  return {{"global_layers", config.n_layers - local},
          {"local_layers", local},
          {"window_tokens", local > 0 ? ordered_json(Window(config)) : ordered_json(nullptr)},
          {"kv_bytes_per_token", KvBytesJson(config, config.n_layers)},
          {"kv_bytes_per_token_global", KvBytesJson(config, config.n_layers - local)}};
}

ordered_json ToJson(const Inspection& inspection) {
  const ModelInfo& info = inspection.info;
  const Shape& shape = inspection.shape;
  ordered_json layers = LayersJson(inspection);
  ordered_json types = ordered_json::array();
  for (const auto& [name, count] : TypesBySize(info)) {
    types.push_back({{"type", name},
                     {"tensors", count.tensors},
                     {"parameters", count.parameters},
                     {"bytes", count.bytes}});
  }
  const std::string& refusal = inspection.refusal;
  return {{"schema", "winnow.inspect/1"},
          {"model", inspection.path},
          {"name", inspection.name},
          {"architecture", inspection.architecture},
          {"runnable", refusal.empty()},
          {"refusal", refusal.empty() ? ordered_json(nullptr) : ordered_json(refusal)},
          {"parameters", info.parameters},
          {"file_bytes", info.file_bytes},
          {"tensor_bytes", info.tensor_bytes},
          {"context_tokens", OrNull(shape.context_length)},
          {"layers", OrNull(shape.layers)},
          {"global_layers", std::move(layers["global_layers"])},
          {"local_layers", std::move(layers["local_layers"])},
          {"window_tokens", std::move(layers["window_tokens"])},
          {"hidden", OrNull(shape.hidden)},
          {"query_heads", OrNull(shape.query_heads)},
          {"kv_heads", OrNull(shape.kv_heads)},
          {"head_dim", OrNull(shape.head_dim)},
          {"feed_forward", OrNull(shape.feed_forward)},
          {"vocabulary", OrNull(shape.vocabulary)},
          {"tensor_types", std::move(types)},
          {"kv_bytes_per_token", std::move(layers["kv_bytes_per_token"])},
          {"kv_bytes_per_token_global", std::move(layers["kv_bytes_per_token_global"])},
          {"chat_template", inspection.has_chat_template},
          {"sparsity_pays_from_tokens", OrNull(inspection.sparsity_pays)}};
}

class Description {
 public:
  // `value` may be of the file, hence anything.
  void Line(std::string_view name, std::string_view value) {
    text_ += fmt::format("{:<16}{}\n", name, EscapeControls(value));
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string CountOrUnknown(const std::optional<int64_t>& count) {
  return count.has_value() ? FormatCount(*count) : "?";
}

std::string DescribeLayers(const Inspection& inspection) {
  if (!inspection.has_config) return CountOrUnknown(inspection.shape.layers);
  const ModelConfig& config = inspection.info.config;
  const int64_t local = LocalLayers(config);
  if (local == 0) return fmt::format("{}, all global", config.n_layers);
  return fmt::format("{}: {} global, {} local with a window of {} tokens", config.n_layers,
                     config.n_layers - local, local, FormatCount(Window(config)));
}

// What the whole trained context takes: local layers hold no more than their window.
int64_t ContextBytes(const ModelConfig& config, int64_t layer_bytes) {
  int64_t tokens = 0;
  for (const LayerConfig& layer : config.layers) {
    tokens +=
        layer.window > 0 ? std::min(layer.window, config.context_length) : config.context_length;
  }
  return tokens * layer_bytes;
}

void DescribeKvCache(const ModelConfig& config, Description& out) {
  std::string_view label = "KV cache";
  for (const DType dtype : kKvTypes) {
    const std::optional<int64_t> bytes = LayerBytes(config, dtype);
    const std::string name(DTypeName(dtype));
    const std::string cost =
        !bytes.has_value()
            ? fmt::format("{:<6}not possible with heads of {}", name, config.head_dim)
            : fmt::format("{:<6}{:>8} bytes a token, {:>8} for the whole context", name,
                          FormatCount(*bytes * config.n_layers),
                          FormatBytes(ContextBytes(config, *bytes)));
    out.Line(std::exchange(label, ""), cost);
  }
}

std::string Describe(const Inspection& inspection) {
  const ModelInfo& info = inspection.info;
  const Shape& shape = inspection.shape;
  Description out;
  out.Line("model", inspection.path);
  if (!inspection.refusal.empty()) out.Line("cannot be run", inspection.refusal);
  if (!inspection.name.empty()) out.Line("name", inspection.name);
  out.Line("architecture", inspection.architecture);
  out.Line("parameters", fmt::format("{} in a file of {}", FormatCount(info.parameters),
                                     FormatBytes(info.file_bytes)));
  out.Line("context", CountOrUnknown(shape.context_length) + " tokens");
  out.Line("layers", DescribeLayers(inspection));
  out.Line("attention",
           fmt::format("{} query heads over {} KV heads of {}", CountOrUnknown(shape.query_heads),
                       CountOrUnknown(shape.kv_heads), CountOrUnknown(shape.head_dim)));
  out.Line("widths",
           fmt::format("hidden {}, feed-forward {}, vocabulary {}", CountOrUnknown(shape.hidden),
                       CountOrUnknown(shape.feed_forward), CountOrUnknown(shape.vocabulary)));
  std::string_view label = "tensor types";
  for (const auto& [name, count] : TypesBySize(info)) {
    out.Line(std::exchange(label, ""),
             fmt::format("{:<6}{:>5} tensors {:>15} parameters {:>10}", name, count.tensors,
                         FormatCount(count.parameters), FormatBytes(count.bytes)));
  }
  if (inspection.has_config) DescribeKvCache(info.config, out);
  out.Line("chat template", inspection.has_chat_template ? "yes" : "none: plain completion");
  if (!inspection.sparsity.empty()) out.Line("sparsity pays", inspection.sparsity);
  return out.text();
}

int Inspect(const std::string& model, bool json) {
  const ModelFile file = ResolveModel(model);
  Inspection inspection = ReadInspection(file.path);
  inspection.path = file.name;
  if (inspection.has_config) ReadSparsity(file.path, &inspection);
  Output output;
  output.Write(json ? DumpJson(ToJson(inspection), /*indent=*/true) + "\n" : Describe(inspection));
  if (inspection.refusal.empty()) return output.ExitCode(0);
  Warn("the model cannot be run: " + inspection.refusal);
  return output.ExitCode(DescribeError(ErrorKind::kInput).exit_code);
}

}  // namespace

void AddInspectCommand(CLI::App& app, CommandContext& context) {
  auto model = std::make_shared<std::string>("default");
  CLI::App* command =
      app.add_subcommand("inspect", "Say what a model file holds and what its context costs");
  CLI::Option* flag = command
                          ->add_option("-m,--model", *model,
                                       "GGUF file; 'default' is the small model that `make deps` "
                                       "brings")
                          ->type_name("PATH")
                          ->check(NotEmpty())
                          ->capture_default_str()
                          ->group("Model");
  CLI::Option* file = command->add_option("file", *model, "The same without -m")
                          ->type_name("PATH")
                          ->check(NotEmpty());
  AddJsonFlag(*command, context);
  command->footer("Example:\n  winnow inspect model.gguf");
  command->callback([model, flag, file, &context] {
    if (*flag && *file) Throw(ErrorKind::kUsage, "-m and a file without it exclude each other");
    context.run = [model, &context] { return Inspect(*model, context.json); };
  });
}

}  // namespace winnow
