// `winnow inspect` as a program: what it says of good files, and of those that cannot be run.
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "cli/harness_test.h"

namespace winnow {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::winnow::testing::DefaultModelPath;
using ::winnow::testing::Finished;
using ::winnow::testing::ReadAll;
using ::winnow::testing::RunWinnow;
using ::winnow::testing::TinyModel;
using ::winnow::testing::WithModel;
using ::winnow::testing::WriteFile;

// A copy of the file with `bytes` in place of those that begin `skip` bytes behind `mark`.
std::string Patched(const std::string& path, const std::string& name, const std::string& mark,
                    size_t skip, const std::string& bytes) {
  std::string file = ReadAll(path);
  const size_t at = file.find(mark);
  EXPECT_NE(at, std::string::npos);
  file.replace(at + mark.size() + skip, bytes.size(), bytes);
  return WriteFile(name, file);
}

std::string WithLayers(const std::string& path, uint32_t layers) {
  std::string bytes(sizeof layers, '\0');
  std::memcpy(bytes.data(), &layers, sizeof layers);
  return Patched(path, "layers.gguf", "llama.block_count", 4, bytes);  // behind the value's type
}

void ExpectRefused(const std::string& path, const std::string& reason) {
  const Finished text = RunWinnow({"inspect", path});
  EXPECT_EQ(text.exit_code, 3);
  EXPECT_THAT(text.out, AllOf(HasSubstr("cannot be run"), HasSubstr(reason), HasSubstr("f32")));
  EXPECT_THAT(text.err, HasSubstr(reason));
  const json info = json::parse(RunWinnow({"inspect", path, "--json"}).out);
  EXPECT_EQ(info.at("schema"), "winnow.inspect/1");
  EXPECT_FALSE(info.at("runnable").get<bool>());
  EXPECT_THAT(info.at("refusal").get<std::string>(), HasSubstr(reason));
  EXPECT_GT(info.at("parameters").get<int64_t>(), 0);
  EXPECT_EQ(RunWinnow({"run", "-m", path, "-p", "x"}).exit_code, 3);
}

TEST(Inspect, ShowsWhatItCanOfAModelThatCannotBeRun) {
  const std::string good = TinyModel("good.gguf", {});
  const json runnable = json::parse(RunWinnow({"inspect", good, "--json"}).out);
  EXPECT_TRUE(runnable.at("runnable").get<bool>());
  EXPECT_TRUE(runnable.at("refusal").is_null());
  for (const uint32_t layers : {2U, 4U, 4000U}) {
    ExpectRefused(WithLayers(good, layers), "the tensors make up 3");
  }
  ExpectRefused(WithLayers(good, 0), "'llama.block_count' is 0");
  ExpectRefused(TinyModel("mamba.gguf", {.architecture = "mamba"}), "'mamba' is not known");
  ExpectRefused(TinyModel("lacking.gguf", {.omit = {"llama.context_length"}}), "lacks");
  for (const char* tensor : {"blk.1.attn_v.weight", "blk.0.ffn_norm.weight", "output.weight"}) {
    ExpectRefused(TinyModel("misshapen.gguf", {.misshape = tensor}), tensor);
  }
  ExpectRefused(TinyModel("typed.gguf", {.value_weight_type = "f64"}), "of type f64");
  ExpectRefused(TinyModel("holed.gguf", {.omit = {"blk.2.ffn_up.weight"}}), "is missing");
  ExpectRefused(TinyModel("more.gguf", {.extra_tensor = "blk.0.attn_q.scale"}), "no place");
  const std::string experts = TinyModel("experts.gguf", {.expert_count = 8});
  ExpectRefused(experts, "mixtures of experts");

  const json info = json::parse(RunWinnow({"inspect", experts, "--json"}).out);
  EXPECT_EQ(info.at("layers"), 3);
  EXPECT_EQ(info.at("context_tokens"), 512);
  EXPECT_TRUE(info.at("kv_bytes_per_token").is_null());
}

TEST(Inspect, TextOfTheFileDoesNotCommandTheTerminal) {
  const std::string path =
      Patched(TinyModel("plain.gguf", {}), "evil.gguf", "tiny ", 0, "\x1b[2\n\x9b");
  EXPECT_THAT(RunWinnow({"inspect", path}).out,
              AllOf(HasSubstr("tiny \\x1b[2\\n\\x9b"), Not(HasSubstr("\x1b"))));
  const json info = json::parse(RunWinnow({"inspect", path, "--json"}).out);
  EXPECT_EQ(info.at("name"), "tiny \x1b[2\n\xEF\xBF\xBD");
}

TEST_F(WithModel, InspectDescribesTheModel) {
  const Finished text = RunWinnow({"inspect", *DefaultModelPath()});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("llama"), HasSubstr("8,192"), HasSubstr("sparsity pays")));
  const Finished result = RunWinnow(Args("inspect", {"--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json info = json::parse(result.out);
  EXPECT_EQ(info.at("schema"), "winnow.inspect/1");
  EXPECT_EQ(info.at("architecture"), "llama");
  EXPECT_EQ(info.at("context_tokens"), 8192);
  EXPECT_EQ(info.at("layers"), 30);
  // 30 layers, 3 KV heads of 64, keys and values, two bytes each.
  EXPECT_EQ(info.at("kv_bytes_per_token").at("f16"), 30 * 3 * 64 * 2 * 2);
  EXPECT_TRUE(info.at("chat_template").get<bool>());
}

}  // namespace
}  // namespace winnow
