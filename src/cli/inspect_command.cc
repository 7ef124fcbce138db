#include "cli/inspect_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/output.h"
#include "core/error.h"
#include "kv/page_layout.h"
#include "model/model_info.h"
#include "text/tokenizer.h"

namespace winnow {
namespace {

using nlohmann::ordered_json;

constexpr DType kKvTypes[] = {DType::kF16, DType::kF32, DType::kQ8_0};

struct Inspection {
  std::string path;
  ModelInfo info;
  bool has_chat_template = false;
};

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

ordered_json ToJson(const Inspection& inspection) {
  const ModelInfo& info = inspection.info;
  const ModelConfig& config = info.config;
  const int64_t local = LocalLayers(config);
  ordered_json types = ordered_json::array();
  for (const auto& [name, count] : TypesBySize(info)) {
    types.push_back({{"type", name},
                     {"tensors", count.tensors},
                     {"parameters", count.parameters},
                     {"bytes", count.bytes}});
  }
  return {{"schema", "winnow.inspect/1"},
          {"model", inspection.path},
          {"name", config.name},
          {"architecture", config.architecture},
          {"parameters", info.parameters},
          {"file_bytes", info.file_bytes},
          {"tensor_bytes", info.tensor_bytes},
          {"context_tokens", config.context_length},
          {"layers", config.n_layers},
          {"global_layers", config.n_layers - local},
          {"local_layers", local},
          {"window_tokens", local > 0 ? ordered_json(Window(config)) : ordered_json(nullptr)},
          {"hidden", config.hidden},
          {"query_heads", config.query_heads},
          {"kv_heads", config.kv_heads},
          {"head_dim", config.head_dim},
          {"feed_forward", config.feed_forward},
          {"vocabulary", config.vocabulary},
          {"tensor_types", std::move(types)},
          {"kv_bytes_per_token", KvBytesJson(config, config.n_layers)},
          {"kv_bytes_per_token_global", KvBytesJson(config, config.n_layers - local)},
          {"chat_template", inspection.has_chat_template},
          {"sparsity_pays_from_tokens", nullptr}};
}

class Description {
 public:
  void Line(std::string_view name, std::string_view value) {
    text_ += fmt::format("{:<16}{}\n", name, value);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string DescribeLayers(const ModelConfig& config) {
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

std::string Describe(const Inspection& inspection) {
  const ModelInfo& info = inspection.info;
  const ModelConfig& config = info.config;
  Description out;
  out.Line("model", inspection.path);
  if (!config.name.empty()) out.Line("name", config.name);
  out.Line("architecture", config.architecture);
  out.Line("parameters", fmt::format("{} in a file of {}", FormatCount(info.parameters),
                                     FormatBytes(static_cast<uint64_t>(info.file_bytes))));
  out.Line("context", fmt::format("{} tokens", FormatCount(config.context_length)));
  out.Line("layers", DescribeLayers(config));
  out.Line("attention", fmt::format("{} query heads over {} KV heads of {}", config.query_heads,
                                    config.kv_heads, config.head_dim));
  out.Line("widths",
           fmt::format("hidden {}, feed-forward {}, vocabulary {}", FormatCount(config.hidden),
                       FormatCount(config.feed_forward), FormatCount(config.vocabulary)));
  std::string_view label = "tensor types";
  for (const auto& [name, count] : TypesBySize(info)) {
    out.Line(std::exchange(label, ""),
             fmt::format("{:<6}{:>5} tensors {:>15} parameters {:>10}", name, count.tensors,
                         FormatCount(count.parameters),
                         FormatBytes(static_cast<uint64_t>(count.bytes))));
  }
  label = "KV cache";
  for (const DType dtype : kKvTypes) {
    const std::optional<int64_t> bytes = LayerBytes(config, dtype);
    const std::string name(DTypeName(dtype));
    const std::string cost =
        !bytes.has_value()
            ? fmt::format("{:<6}not possible with heads of {}", name, config.head_dim)
            : fmt::format("{:<6}{:>8} bytes a token, {:>8} for the whole context", name,
                          FormatCount(*bytes * config.n_layers),
                          FormatBytes(static_cast<uint64_t>(ContextBytes(config, *bytes))));
    out.Line(std::exchange(label, ""), cost);
  }
  out.Line("chat template", inspection.has_chat_template ? "yes" : "none: plain completion");
  out.Line("sparsity pays", "not measured: this version is dense only");
  return out.text();
}

int Inspect(const std::string& model, bool json) {
  Inspection inspection;
  inspection.path = ResolveModelPath(model);
  inspection.info = ReadModelInfo(inspection.path);
  inspection.has_chat_template = Tokenizer::Load(inspection.path)->has_chat_template();
  Output output;
  output.Write(json ? DumpJson(ToJson(inspection), /*indent=*/true) + "\n" : Describe(inspection));
  return output.ExitCode(0);
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
                          ->capture_default_str()
                          ->group("Model");
  command->add_option("file", *model, "The same without -m")->type_name("PATH")->excludes(flag);
  AddJsonFlag(*command, context);
  command->footer("Example:\n  winnow inspect model.gguf");
  command->callback([model, &context] {
    context.run = [model, &context] { return Inspect(*model, context.json); };
  });
}

}  // namespace winnow
