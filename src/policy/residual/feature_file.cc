#include "policy/residual/feature_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "core/check.h"
#include "core/error.h"
#include "model/model_hash.h"
#include "policy/residual/tensor_file.h"

namespace winnow {

class FeatureMapLoader {
 public:
  FeatureMapLoader(const TensorFile& file, const FeatureModel& model)
      : file_(file), model_(model) {}

  FeatureMaps Load() {
    CheckMetadata();
    ReadShape();
    maps_.layers_.resize(model_.n_layers);
    const std::vector<std::string> names = file_.Names();
    std::set<std::string> unread(names.begin(), names.end());
    for (int64_t layer = 0; layer < model_.n_layers; ++layer) {
      const std::string prefix = fmt::format("blk.{}.", layer);
      const auto first = unread.lower_bound(prefix);
      if (first == unread.end() || !first->starts_with(prefix)) continue;
      ReadStack(prefix + "phi_q.", model_.query_heads, maps_.layers_[layer].query, unread);
      ReadStack(prefix + "phi_k.", model_.kv_heads, maps_.layers_[layer].key, unread);
    }
    if (!unread.empty()) {
      Refuse("tensor '{}' belongs to no feature map of a model of {} layers", *unread.begin(),
             model_.n_layers);
    }
    return std::move(maps_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void Refuse(fmt::format_string<Args...> format, Args&&... args) const {
    Throw(ErrorKind::kInput, "the feature maps in {} cannot be used: {}", file_.path(),
          fmt::format(format, std::forward<Args>(args)...));
  }

  std::string RequiredText(const std::string& key) const {
    const auto value = file_.Metadata(key);
    if (!value) Refuse("the metadata key '{}' is missing", key);
    return *value;
  }

  void CheckMetadata() {
    const std::string format = RequiredText("winnow.phi.format");
    if (format != "1") Refuse("their format is '{}', and '1' is known", format);
    const std::string hash = RequiredText("winnow.phi.model_hash");
    if (hash != model_.hash) {
      Refuse("they were trained for the model with hash {}, and this one's is {}", hash,
             model_.hash);
    }
    const std::string tokens = RequiredText("winnow.phi.trained_tokens");
    const char* end = tokens.data() + tokens.size();
    const auto [parsed, error] = std::from_chars(tokens.data(), end, maps_.trained_tokens_);
    if (error != std::errc() || parsed != end || maps_.trained_tokens_ < 1) {
      Refuse("'winnow.phi.trained_tokens' is '{}', not a number of tokens", tokens);
    }
  }

  // hidden and features from the first layer that is there; every tensor is held against them.
  void ReadShape() {
    maps_.shape_ = {model_.head_dim, 0, 0};
    for (int64_t layer = 0; layer < model_.n_layers; ++layer) {
      const auto w_s = file_.Shape(fmt::format("blk.{}.phi_q.w_s", layer));
      const auto w_o = file_.Shape(fmt::format("blk.{}.phi_q.w_o", layer));
      if (!w_s || !w_o) continue;
      maps_.shape_.hidden = (*w_s)[2];
      maps_.shape_.n_features = (*w_o)[2];
      break;
    }
    if (maps_.shape_.hidden < 1 || maps_.shape_.n_features < 1) {
      Refuse("no layer has the tensors w_s and w_o");
    }
  }

  void ReadStack(const std::string& prefix, int64_t heads, FeatureMaps::Stack& stack,
                 std::set<std::string>& unread) const {
    const auto [dim, hidden, features] = maps_.shape_;
    const auto read = [&](const char* name, const FileShape& shape, std::vector<float>& out) {
      ReadTensor(prefix + name, shape, out);
      unread.erase(prefix + name);
    };
    read("w_s", {1, heads, hidden, dim}, stack.w_s);
    read("b_s", {1, 1, heads, hidden}, stack.b_s);
    read("w_1", {1, heads, hidden, hidden}, stack.w_1);
    read("b_1", {1, 1, heads, hidden}, stack.b_1);
    read("w_2", {1, heads, hidden, hidden}, stack.w_2);
    read("b_2", {1, 1, heads, hidden}, stack.b_2);
    read("w_o", {1, heads, features, hidden}, stack.w_o);
    read("b_o", {1, 1, heads, features}, stack.b_o);
    read("alpha", {1, 1, 1, heads}, stack.alpha);
    read("log_gain", {1, 1, 1, heads}, stack.log_gain);
  }

  void ReadTensor(const std::string& name, const FileShape& wanted, std::vector<float>& out) const {
    const auto shape = file_.Shape(name);
    if (!shape) Refuse("tensor '{}' is missing", name);
    if (*shape != wanted) {
      Refuse("tensor '{}' has the shape [{}], and this model needs [{}]", name,
             fmt::join(*shape, ", "), fmt::join(wanted, ", "));
    }
    out.resize(Elements(wanted));
    file_.Read(name, out);
    if (!std::all_of(out.begin(), out.end(), [](float x) { return std::isfinite(x); })) {
      Refuse("tensor '{}' has values that are not finite", name);
    }
  }

  const TensorFile& file_;
  const FeatureModel& model_;
  FeatureMaps maps_;
};

bool FeatureMaps::HasLayer(int64_t layer) const {
  WINNOW_CHECK(0 <= layer && layer < std::ssize(layers_), "layer {} of {}", layer, layers_.size());
  return !layers_[layer].key.alpha.empty();
}

FeatureMap<float> FeatureMaps::At(const Stack& stack, int64_t head) const {
  WINNOW_CHECK(0 <= head && head < std::ssize(stack.alpha), "head {} of {}", head,
               stack.alpha.size());
  const auto [dim, hidden, features] = shape_;
  const auto matrix = [&](const std::vector<float>& all, int64_t rows, int64_t columns) {
    return TensorView<const float, 2>{all.data() + head * rows * columns, {rows, columns}};
  };
  const auto vector = [&](const std::vector<float>& all, int64_t n) {
    return std::span(all).subspan(head * n, n);
  };
  return {matrix(stack.w_s, hidden, dim),
          matrix(stack.w_1, hidden, hidden),
          matrix(stack.w_2, hidden, hidden),
          matrix(stack.w_o, features, hidden),
          vector(stack.b_s, hidden),
          vector(stack.b_1, hidden),
          vector(stack.b_2, hidden),
          vector(stack.b_o, features),
          stack.alpha[head],
          stack.log_gain[head]};
}

FeatureMap<float> FeatureMaps::Query(int64_t layer, int64_t query_head) const {
  WINNOW_CHECK(HasLayer(layer), "layer {} has no maps", layer);
  return At(layers_[layer].query, query_head);
}

FeatureMap<float> FeatureMaps::Key(int64_t layer, int64_t kv_head) const {
  WINNOW_CHECK(HasLayer(layer), "layer {} has no maps", layer);
  return At(layers_[layer].key, kv_head);
}

int64_t FeatureMaps::weight_bytes() const {
  int64_t maps = 0;
  for (const Layer& layer : layers_) {
    maps += std::ssize(layer.query.alpha) + std::ssize(layer.key.alpha);
  }
  return maps * FeatureMapParameters(shape_) * static_cast<int64_t>(sizeof(float));
}

FeatureMaps LoadFeatureMaps(const std::string& path, const FeatureModel& model) {
  return FeatureMapLoader(*OpenTensorFile(path), model).Load();
}

FeatureMaps LoadFeatureMaps(const std::string& path, const ModelConfig& config,
                            const std::string& model_path) {
  return LoadFeatureMaps(path, {.n_layers = config.n_layers,
                                .query_heads = config.query_heads,
                                .kv_heads = config.kv_heads,
                                .head_dim = config.head_dim,
                                .hash = HashModelFile(model_path).Hex()});
}

}  // namespace winnow
