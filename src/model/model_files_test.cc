// Files that cannot be used: each gives an Error that names the file and the trouble.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/parallel.h"
#include "model/architecture.h"
#include "model/backbone.h"
#include "model/gguf_file.h"
#include "model/model_info.h"
#include "model/weights.h"
#include "testing/paths.h"
#include "testing/tiny_gguf.h"

namespace winnow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TinyGguf;

class BadFile : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string Write(const TinyGguf& options) {
    std::string path = Path("bad.gguf");
    testing::WriteTinyGguf(path, options);
    return path;
  }
  // Loading fails with kInput and a message that names the file and matches.
  void ExpectInputError(const std::string& path, const ::testing::Matcher<std::string>& trouble) {
    const std::string message = InputErrorOf([&] { LoadCpuBackbone(path, &pool_); });
    EXPECT_THAT(message, AllOf(HasSubstr(path), trouble));
    // What inspects without loading says the same.
    EXPECT_EQ(message, InputErrorOf([&] {
                const GgufFile file(path);
                CheckTensors(file, ReadModelConfig(file));
              }));
  }
  template <typename Call>
  static std::string InputErrorOf(Call call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      return error.what();
    }
    return "no error";
  }

  std::string folder_ = testing::TemporaryFolder();
  ThreadPool pool_{1};
};

TEST_F(BadFile, Missing) { ExpectInputError(Path("none.gguf"), HasSubstr("No such file")); }

TEST_F(BadFile, Folder) { ExpectInputError(folder_, HasSubstr("not a regular file")); }

TEST_F(BadFile, PipeThatNobodyWritesTo) {
  ASSERT_EQ(mkfifo(Path("pipe.gguf").c_str(), 0600), 0);
  ExpectInputError(Path("pipe.gguf"), HasSubstr("not a regular file"));
}

TEST_F(BadFile, TextAndEmpty) {
  const std::string path = Path("text.gguf");
  std::ofstream(path) << "This is no model.";
  ExpectInputError(path, HasSubstr("not a GGUF file"));
  std::ofstream(path, std::ios::trunc).flush();
  ExpectInputError(path, HasSubstr("not a GGUF file"));
}

TEST_F(BadFile, TruncatedAnywhere) {
  const std::string path = Write({});
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path));
  // In the version, the counts, a key, the tokens, the tensor list and the data.
  for (int64_t keep :
       {size - 1, size - 200, size / 2, size / 20, size / 60, int64_t{2000}, int64_t{200},
        int64_t{60}, int64_t{20}, int64_t{9}, int64_t{5}, int64_t{4}}) {
    std::filesystem::resize_file(Write({}), keep);
    ExpectInputError(path, HasSubstr("truncated"));
  }
  std::filesystem::resize_file(Write({}), 3);
  ExpectInputError(path, HasSubstr("not a GGUF file"));
}

TEST_F(BadFile, DamagedHeader) {
  const std::string path = Write({});
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(8);  // the number of tensors
  const std::vector<char> ones(8, '\x7f');
  file.write(ones.data(), 8);
  file.close();
  ExpectInputError(path, HasSubstr("damaged"));
}

TEST_F(BadFile, UnknownArchitectureListsTheKnown) {
  ExpectInputError(Write({.architecture = "mamba"}),
                   AllOf(HasSubstr("'mamba'"), HasSubstr("llama, qwen2, qwen3, gemma3")));
  ExpectInputError(Write({.omit = {"general.architecture"}}), HasSubstr("general.architecture"));
}

TEST_F(BadFile, MissingMetadata) {
  for (const char* key : {"llama.block_count", "llama.embedding_length",
                          "llama.attention.head_count", "llama.feed_forward_length",
                          "llama.context_length", "llama.attention.layer_norm_rms_epsilon"}) {
    ExpectInputError(Write({.omit = {key}}), HasSubstr(key));
  }
}

TEST_F(BadFile, HeadsThatDoNotDivide) {
  ExpectInputError(Write({.query_heads = 4, .kv_heads = 3}), HasSubstr("4 query heads"));
}

TEST_F(BadFile, MissingTensor) {
  for (const char* name : {"token_embd.weight", "output_norm.weight", "blk.1.attn_k.weight",
                           "blk.2.ffn_down.weight", "blk.0.attn_norm.weight"}) {
    ExpectInputError(Write({.omit = {name}}), AllOf(HasSubstr(name), HasSubstr("missing")));
  }
  ExpectInputError(Write({.architecture = "gemma3", .omit = {"blk.0.post_ffw_norm.weight"}}),
                   HasSubstr("post_ffw_norm"));
  ExpectInputError(Write({.architecture = "qwen2", .omit = {"blk.0.attn_k.bias"}}),
                   HasSubstr("only some have a bias"));
}

TEST_F(BadFile, WrongShape) {
  for (const char* name : {"token_embd.weight", "output.weight", "blk.1.attn_v.weight",
                           "blk.1.ffn_up.weight", "blk.0.ffn_norm.weight"}) {
    ExpectInputError(Write({.misshape = name}), AllOf(HasSubstr(name), HasSubstr("shape")));
  }
}

TEST_F(BadFile, AnotherNumberOfLayers) {
  ExpectInputError(Write({.extra_tensor = "blk.3.attn_q.weight"}),
                   HasSubstr("3 layers, the tensors make up 4"));
  // No number that an int holds: no layer.
  ExpectInputError(Write({.extra_tensor = "blk.9223372036854775807.attn_q.weight"}),
                   HasSubstr("no place"));
}

TEST_F(BadFile, WrongType) {
  ExpectInputError(Write({.weight_type = "f64"}), HasSubstr("f64"));
  ExpectInputError(Write({.value_weight_type = "f64"}), HasSubstr("attn_v"));
}

TEST_F(BadFile, UnsupportedFeatures) {
  ExpectInputError(Write({.expert_count = 8}), HasSubstr("experts"));
  ExpectInputError(Write({.rope_scaling_type = "yarn"}), HasSubstr("'yarn' is not supported"));
  ExpectInputError(Write({.rope_scaling_type = "longrope"}), HasSubstr("'longrope'"));
  ExpectInputError(Write({.extra_tensor = "blk.0.attn_q.scale"}), HasSubstr("blk.0.attn_q.scale"));
  ExpectInputError(Write({.architecture = "qwen2", .rope_llama3_factors = true}),
                   HasSubstr("rope_freqs"));
}

TEST_F(BadFile, InfoNamesTheTroubleToo) {
  EXPECT_THROW(ReadModelInfo(Path("none.gguf")), Error);
  EXPECT_THROW(ReadModelInfo(Write({.architecture = "gpt2"})), Error);
}

TEST_F(BadFile, MetadataOfAnotherType) {
  const GgufFile file(Write({}));
  EXPECT_THROW(file.Integer("general.name"), Error);
  EXPECT_THROW(file.String("llama.block_count"), Error);
  EXPECT_THROW(file.Real("llama.block_count"), Error);
  EXPECT_THROW(file.Integers("tokenizer.ggml.tokens"), Error);
  EXPECT_EQ(file.Integer("no.such.key"), std::nullopt);
  EXPECT_EQ(file.ArrayLength("tokenizer.ggml.tokens"), testing::TinyVocabulary());
}

}  // namespace
}  // namespace winnow
