#include "policy/residual/feature_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "testing/feature_maps.h"
#include "testing/paths.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;
using testing::RandomFeatureMaps;
using testing::WriteFeatureMaps;

FeatureModel ModelOf(const RandomFeatureMaps& options) {
  return {options.n_layers, options.query_heads, options.kv_heads, options.head_dim,
          options.model_hash};
}

const std::string& Folder() {
  static const std::string kFolder = testing::TemporaryFolder();
  return kFolder;
}

std::string Write(const RandomFeatureMaps& options, const std::string& name = "phi.safetensors") {
  std::string path = Folder() + "/" + name;
  WriteFeatureMaps(path, options);
  return path;
}

std::vector<double> Evaluate(const FeatureMap<float>& map) {
  std::vector<double> x;
  for (int64_t i = 0; i < map.shape().head_dim; ++i) x.push_back(0.1 * static_cast<double>(i));
  std::vector<double> log_phi(map.shape().n_features);
  FeatureMapScratch scratch;
  LogFeatures(map, x, scratch, log_phi);
  return log_phi;
}

// The message of the refusal, which has to be of kind kInput and to name the file.
std::string Refusal(const std::string& path, const FeatureModel& model) {
  try {
    LoadFeatureMaps(path, model);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    EXPECT_THAT(error.what(), HasSubstr(path));
    return error.what();
  }
  return "no error";
}

TEST(FeatureFile, BothFormatsGiveTheSameMaps) {
  const RandomFeatureMaps options;
  const FeatureMaps a = LoadFeatureMaps(Write(options), ModelOf(options));
  const FeatureMaps b = LoadFeatureMaps(Write(options, "phi.gguf"), ModelOf(options));
  EXPECT_EQ(a.shape(), (FeatureMapShape{16, 24, 8}));
  EXPECT_EQ(a.shape(), b.shape());
  EXPECT_EQ(a.trained_tokens(), 4096);
  EXPECT_EQ(a.weight_bytes(), 2 * (4 + 2) * FeatureMapParameters(a.shape()) * 4);
  for (int64_t layer = 0; layer < 2; ++layer) {
    for (int64_t head = 0; head < 4; ++head) {
      EXPECT_EQ(Evaluate(a.Query(layer, head)), Evaluate(b.Query(layer, head)));
    }
    EXPECT_EQ(Evaluate(a.Key(layer, 1)), Evaluate(b.Key(layer, 1)));
  }
  EXPECT_NE(Evaluate(a.Query(0, 0)), Evaluate(a.Query(0, 1)));
  EXPECT_NE(Evaluate(a.Query(0, 0)), Evaluate(a.Query(1, 0)));
  EXPECT_NE(Evaluate(a.Query(0, 0)), Evaluate(a.Key(0, 0)));
}

TEST(FeatureFile, HalfPrecisionIsNear) {
  RandomFeatureMaps options;
  const std::vector<double> exact =
      Evaluate(LoadFeatureMaps(Write(options), ModelOf(options)).Query(0, 0));
  for (const char* type : {"f16", "bf16"}) {
    options.weight_type = type;
    for (const char* name : {"half.safetensors", "half.gguf"}) {
      const FeatureMaps maps = LoadFeatureMaps(Write(options, name), ModelOf(options));
      const std::vector<double> log_phi = Evaluate(maps.Query(0, 0));
      for (size_t f = 0; f < exact.size(); ++f) {
        // bf16 rounds by up to 2⁻⁹ each of five layers of numbers of about 1, in 24 or 16 terms.
        EXPECT_NEAR(log_phi[f], exact[f], 5 * std::sqrt(24.0) / 512) << type;
      }
    }
  }
}

TEST(FeatureFile, LayersMayBeLeftOut) {
  RandomFeatureMaps options;
  options.n_layers = 12;
  options.omit_layers = {0, 2, 10};  // layer 1 must not be taken for 10 or 11
  const FeatureMaps maps = LoadFeatureMaps(Write(options), ModelOf(options));
  for (int64_t layer = 0; layer < 12; ++layer) {
    EXPECT_EQ(maps.HasLayer(layer), layer != 0 && layer != 2 && layer != 10) << layer;
  }
  for (int layer = 0; layer < 12; ++layer) options.omit_layers.push_back(layer);
  EXPECT_THAT(Refusal(Write(options), ModelOf(options)), HasSubstr("no layer"));
}

// Of head dimension 1 and one head, where GGUF drops axes.
TEST(FeatureFile, TheSmallestShape) {
  RandomFeatureMaps options;
  options.query_heads = options.kv_heads = options.head_dim = options.n_features = 1;
  const FeatureMaps a = LoadFeatureMaps(Write(options), ModelOf(options));
  const FeatureMaps b = LoadFeatureMaps(Write(options, "phi.gguf"), ModelOf(options));
  EXPECT_EQ(Evaluate(a.Query(1, 0)), Evaluate(b.Query(1, 0)));
}

class Refusals : public ::testing::TestWithParam<const char*> {
 protected:
  std::string After(const RandomFeatureMaps& options) const {
    return Refusal(Write(options, GetParam()), ModelOf({}));
  }
};
INSTANTIATE_TEST_SUITE_P(Formats, Refusals, ::testing::Values("phi.safetensors", "phi.gguf"));

TEST_P(Refusals, AnotherModel) {
  RandomFeatureMaps options;
  options.model_hash = "ffff";
  EXPECT_THAT(After(options), HasSubstr("hash ffff"));
  options = {};
  options.head_dim = 8;
  EXPECT_THAT(After(options), HasSubstr("w_s"));
  options = {};
  options.query_heads = 6;
  EXPECT_THAT(After(options), HasSubstr("phi_q"));
  options = {};
  options.kv_heads = 4;
  EXPECT_THAT(After(options), HasSubstr("phi_k"));
  options = {};
  options.n_layers = 3;
  EXPECT_THAT(After(options), HasSubstr("blk.2."));
}

TEST_P(Refusals, BrokenContents) {
  RandomFeatureMaps options;
  options.format = "2";
  EXPECT_THAT(After(options), HasSubstr("format is '2'"));
  for (const char* tokens : {"many", "0", "-4", "12x", ""}) {
    options = {};
    options.trained_tokens = tokens;
    EXPECT_THAT(After(options), HasSubstr("trained_tokens"));
  }
  for (const char* key :
       {"winnow.phi.format", "winnow.phi.model_hash", "winnow.phi.trained_tokens"}) {
    options = {};
    options.omit = key;
    EXPECT_THAT(After(options), HasSubstr(key));
  }
  for (const char* name : {"blk.1.phi_q.w_s", "blk.1.phi_k.w_2", "blk.0.phi_q.alpha"}) {
    options = {};
    options.omit = name;
    EXPECT_THAT(After(options), HasSubstr(name));
    options = {};
    options.misshape = name;
    EXPECT_THAT(After(options), HasSubstr("shape"));
    options = {};
    options.not_finite = name;
    EXPECT_THAT(After(options), HasSubstr(name));
  }
  for (const char* name : {"blk.0.phi_q.w_3", "blk.2.phi_q.w_s", "blk.-1.phi_q.w_s", "other"}) {
    options = {};
    options.extra = name;
    EXPECT_THAT(After(options), HasSubstr(name));
  }
}

std::string Contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::string RefusalOf(const std::string& contents) {
  const std::string path = Folder() + "/broken";
  std::ofstream(path, std::ios::binary) << contents;
  return Refusal(path, ModelOf({}));
}

// A file of the given header and eight bytes of data.
std::string WithHeader(const std::string& header) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i));
  return file + header + std::string(8, '\0');
}

TEST(FeatureFile, DamagedFiles) {
  EXPECT_THAT(Refusal(Folder() + "/absent", ModelOf({})), HasSubstr("cannot open"));
  EXPECT_THAT(Refusal(Folder(), ModelOf({})), HasSubstr("cannot"));
  for (const char* name : {"phi.safetensors", "phi.gguf"}) {
    const std::string whole = Contents(Write({}, name));
    for (size_t length : {size_t{0}, size_t{3}, size_t{7}, size_t{100}, whole.size() - 100}) {
      EXPECT_NE(RefusalOf(whole.substr(0, length)), "no error") << name << " " << length;
    }
  }
  EXPECT_THAT(RefusalOf(Contents(Write({})) + "x"), HasSubstr("damaged"));
}

TEST(FeatureFile, DamagedSafetensorsHeaders) {
  const char* tensor = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_THAT(RefusalOf(WithHeader(tensor)), HasSubstr("winnow.phi.format"));  // well formed
  for (const char* header : {
           "",
           "[]",
           "{",
           "null",
           R"({"a":1})",
           R"({"a":{}})",
           R"({"__metadata__":[],"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
           R"({"__metadata__":{"k":1},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
           R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})",
           R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})",
           R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})",
           R"({"a":{"dtype":"F32","shape":"2","data_offsets":[0,8]}})",
           R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})",
           R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})",
           R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})",
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
           R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,8]}})",
           R"({"a":{"dtype":"F32","shape":[1,1,1,1,2],"data_offsets":[0,8]}})",
           R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,8]}})",
           R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
               "b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       }) {
    const std::string message = RefusalOf(WithHeader(header));
    EXPECT_NE(message, "no error") << header;
    EXPECT_THAT(message, ::testing::Not(HasSubstr("winnow.phi"))) << header;
  }
  EXPECT_THAT(RefusalOf(std::string(8, '\xff') + "{}"), HasSubstr("neither"));
  std::string integers = WithHeader(R"({"__metadata__":{"winnow.phi.format":"1",)"
                                    R"("winnow.phi.model_hash":")" +
                                    RandomFeatureMaps().model_hash +
                                    R"(","winnow.phi.trained_tokens":"8"},)"
                                    R"("blk.0.phi_q.w_o":{"dtype":"I32","shape":[1,1,1],)"
                                    R"("data_offsets":[0,4]},)"
                                    R"("blk.0.phi_q.w_s":{"dtype":"I32","shape":[1,1,1],)"
                                    R"("data_offsets":[4,8]}})");
  const std::string path = Folder() + "/integers";
  std::ofstream(path, std::ios::binary) << integers;
  EXPECT_THAT(Refusal(path, {1, 1, 1, 1, RandomFeatureMaps().model_hash}), HasSubstr("I32"));
}

}  // namespace
}  // namespace winnow
