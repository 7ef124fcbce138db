// `winnow run` and `bench` as programs: exit codes, messages, JSON, signals, pipes.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cli/harness_test.h"

namespace winnow {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::winnow::testing::ChildProcess;
using ::winnow::testing::DefaultModelPath;
using ::winnow::testing::ErrorStream;
using ::winnow::testing::ExpectUsageError;
using ::winnow::testing::Finished;
using ::winnow::testing::Prose;
using ::winnow::testing::RunWinnow;
using ::winnow::testing::TinyModel;
using ::winnow::testing::WithModel;
using ::winnow::testing::WriteFile;

TEST(BadInput, Models) {
  const auto expect = [](const std::string& model, const std::string& message) {
    for (const char* command : {"run", "inspect"}) {
      std::vector<std::string> args = {command, "-m", model};
      if (args.front() == "run") args.insert(args.end(), {"-p", "x"});
      const Finished result = RunWinnow(args);
      EXPECT_EQ(result.exit_code, 3) << result.err;
      EXPECT_THAT(result.err, HasSubstr(message));
    }
  };
  expect("/no/such/model.gguf", "/no/such/model.gguf");
  expect(WriteFile("text.gguf", "This is not a model.\n"), "text.gguf");
  expect(WriteFile("empty.gguf", ""), "empty.gguf");
}

TEST(SyntheticModel, RunsAndIsNamedWhatItIs) {
  const std::string name = "synthetic:smollm2-135m,layers=1";
  const Finished run = RunWinnow({"run", "-m", name, "-p", "x", "-n", "2", "-c", "64", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(json::parse(run.out).at("model"), name);
  EXPECT_THAT(run.err, HasSubstr("random weights"));
  const Finished inspect = RunWinnow({"inspect", "-m", name, "--json"});
  EXPECT_EQ(json::parse(inspect.out).at("model"), name);
  EXPECT_EQ(json::parse(inspect.out).at("layers"), 1);
  ExpectUsageError(RunWinnow({"inspect", "-m", "synthetic:gpt-9"}), "known: smollm2-135m");
}

TEST(BadInput, BrokenModels) {
  // One that llama.cpp knows, one that nobody knows.
  for (const char* name : {"mamba", "nosuch"}) {
    const std::string path = TinyModel("unknown.gguf", {.architecture = name});
    for (const char* command : {"run", "bench"}) {
      std::vector<std::string> args = {command, "-m", path};
      if (args.front() == "run") args.insert(args.end(), {"-p", "x"});
      const Finished unknown = RunWinnow(args);
      EXPECT_EQ(unknown.exit_code, 3);
      EXPECT_THAT(unknown.err, AllOf(HasSubstr(name), HasSubstr("llama, "), HasSubstr("qwen2"),
                                     HasSubstr("qwen3"), HasSubstr("gemma3")));
    }
  }
  const Finished shape = RunWinnow(
      {"run", "-m", TinyModel("shape.gguf", {.misshape = "blk.1.attn_k.weight"}), "-p", "x"});
  EXPECT_EQ(shape.exit_code, 3);
  EXPECT_THAT(shape.err, HasSubstr("blk.1.attn_k.weight"));
  const Finished lacking = RunWinnow(
      {"run", "-m", TinyModel("lacking.gguf", {.omit = {"blk.2.ffn_up.weight"}}), "-p", "x"});
  EXPECT_EQ(lacking.exit_code, 3);
  EXPECT_THAT(lacking.err, HasSubstr("blk.2.ffn_up.weight"));
}

TEST(TinyModels, WithoutATemplateGetPlainCompletionAndANote) {
  const std::string path = TinyModel("plain.gguf", {.architecture = "gemma3"});
  const Finished result =
      RunWinnow({"run", "-m", path, "-p", "hello", "-n", "4", "-t", "1", "--kv-type", "f32"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("plain completion"));
  const json info = json::parse(RunWinnow({"inspect", path, "--json"}).out);
  EXPECT_EQ(info.at("architecture"), "gemma3");
  EXPECT_FALSE(info.at("chat_template").get<bool>());
  EXPECT_EQ(info.at("window_tokens"), 8);
  // Heads of 16 are no multiple of q8_0's block of 32.
  EXPECT_TRUE(info.at("kv_bytes_per_token").at("q8_0").is_null());
  EXPECT_EQ(RunWinnow({"run", "-m", path, "-p", "hello", "--kv-type", "q8_0"}).exit_code, 2);
}

// Positions are divided by next to nothing, so that no logit is finite.
TEST(TinyModels, AFailedRequestKeepsItsRecord) {
  const std::string path = TinyModel("failing.gguf", {.rope_linear_factor = 1e-40F});
  const Finished result = RunWinnow({"run", "-p", "hello", "-m", path, "-t", "1", "--json", "-q"});
  const json record = json::parse(result.out);
  EXPECT_EQ(record.at("schema"), "winnow.run/1");
  EXPECT_EQ(record.at("finish_reason"), "failed");
  EXPECT_THAT(record.at("error").get<std::string>(), HasSubstr("not finite"));
  EXPECT_THAT(result.err, HasSubstr("not finite"));
  EXPECT_GT(result.exit_code, 0);
}

TEST(TinyModels, BenchTakesBatchesAboveThePrefillChunk) {
  const std::string path = TinyModel("bench.gguf", {});
  const Finished result = RunWinnow({"bench", "-m", path, "--json", "-t", "1", "-p", "0", "-n", "1",
                                     "-r", "1", "-b", "12", "--prefill-chunk", "2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out).at(0).at("n_batch"), 12);
}

TEST(BadInput, Documents) {
  const Finished missing = RunWinnow({"run", "-f", "/no/such/file.txt", "-p", "x"});
  EXPECT_EQ(missing.exit_code, 3);
  EXPECT_THAT(missing.err, HasSubstr("/no/such/file.txt"));
  const std::string binary = WriteFile("picture.bin", std::string("PNG\0\1\2\xff", 7));
  const Finished only_binary = RunWinnow({"run", "-f", binary, "-p", "x"});
  EXPECT_EQ(only_binary.exit_code, 3);
  EXPECT_THAT(only_binary.err, HasSubstr("skipped " + binary));
  const Finished strict = RunWinnow({"run", "--strict", "-f", binary, "-p", "x"});
  EXPECT_EQ(strict.exit_code, 3);
  EXPECT_THAT(strict.err, HasSubstr(binary));
}

TEST(BadInput, Questions) {
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"run"}, {"run", "-p", "-"}}) {
    const Finished empty = RunWinnow(args);
    EXPECT_EQ(empty.exit_code, 3);
    EXPECT_THAT(empty.err, HasSubstr("the prompt is empty"));
  }
  const Finished bytes = RunWinnow({"run", "-p", "caf\xe9"});
  EXPECT_EQ(bytes.exit_code, 3);
  EXPECT_THAT(bytes.err, HasSubstr("byte 0xe9 at offset 3"));
  EXPECT_EQ(RunWinnow({"run", "--prompt-file", "/no/such"}).exit_code, 3);
  EXPECT_EQ(RunWinnow({"run", "--prompt-file", "/tmp"}).exit_code, 3);
  // Opens, but its first byte cannot be read.
  const Finished unreadable = RunWinnow({"run", "--prompt-file", "/proc/self/mem"});
  EXPECT_EQ(unreadable.exit_code, 3);
  EXPECT_THAT(unreadable.err, HasSubstr("/proc/self/mem: cannot be read: "));
}

TEST(TinyModels, AByteOrderMarkIsNotPartOfThePrompt) {
  const std::string model = TinyModel("mark.gguf", {});
  const auto prompt_tokens = [&](const std::string& text) {
    const std::string file = WriteFile("question.txt", text);
    const Finished result = RunWinnow(
        {"run", "-m", model, "-t", "1", "-n", "1", "--json", "--prompt-file", file, "-f", file});
    return json::parse(result.out).at("prompt_tokens").get<int64_t>();
  };
  EXPECT_EQ(prompt_tokens("\xEF\xBB\xBFhello"), prompt_tokens("hello"));
  const std::string only = WriteFile("only.txt", "\xEF\xBB\xBF\n");
  const Finished empty = RunWinnow({"run", "-m", model, "--prompt-file", only});
  EXPECT_EQ(empty.exit_code, 3);
  EXPECT_THAT(empty.err, HasSubstr("the prompt is empty"));
}

TEST(BadInput, NamesOfFilesDoNotCommandTheTerminal) {
  const std::string file = WriteFile("a\x1b[2J\n.bin", std::string(1, '\0'));
  const Finished result = RunWinnow({"run", "-p", "x", "-f", file});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr("a\\x1b[2J\\n.bin: binary"), Not(HasSubstr("\x1b"))));
}

TEST_F(WithModel, AnswersOnStdoutAndReportsOnStderr) {
  const Finished result = Run({"--no-chat-template", "-p", "The capital of France is", "-n", "8"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Paris"));
  EXPECT_THAT(result.out, Not(HasSubstr("prompt tokens")));
  for (const char* row : {"prompt tokens", "time to first token", "ms a token", "memory", "KV"}) {
    EXPECT_THAT(result.err, HasSubstr(row));
  }
  const Finished quiet =
      Run({"--no-chat-template", "-p", "-", "-n", "8", "-q"}, "The capital of France is\n");
  EXPECT_EQ(quiet.out, result.out);
  EXPECT_THAT(quiet.err, IsEmpty());
}

TEST_F(WithModel, RunJsonHasEveryKey) {
  const std::string note = WriteFile("note.txt", "The code word is heron.\n");
  const std::string latin = WriteFile("latin.txt", "caf\xe9 au lait\n");
  const Finished result =
      Run({"--json", "-f", note, latin, "-p", "What is the code word?", "-n", "8"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json record = json::parse(result.out);
  EXPECT_EQ(record.at("schema"), "winnow.run/1");
  EXPECT_EQ(record.at("model"), *DefaultModelPath());
  EXPECT_EQ(record.at("arm"), "auto");
  EXPECT_EQ(record.at("arm_resolved"), "dense");
  EXPECT_EQ(record.at("reused_tokens"), 0);
  EXPECT_THAT(record.at("finish_reason").get<std::string>(), Not(IsEmpty()));
  EXPECT_GT(record.at("ttft_ms").get<double>(), 0);
  EXPECT_GT(record.at("tpot_ms").get<double>(), 0);
  EXPECT_GT(record.at("kv_bytes").get<int64_t>(), 0);
  EXPECT_GT(record.at("peak_rss_bytes").get<int64_t>(), record.at("kv_bytes").get<int64_t>());
  EXPECT_TRUE(record.at("peer").is_null());
  ASSERT_EQ(record.at("documents").size(), 1u);
  const json& document = record.at("documents").at(0);
  EXPECT_EQ(document.at("id"), note);
  EXPECT_EQ(document.at("kept"), document.at("tokens"));
  EXPECT_EQ(document.at("read"), document.at("tokens"));
  EXPECT_TRUE(document.at("mass").is_null());
  ASSERT_EQ(record.at("skipped").size(), 1u);
  EXPECT_EQ(record.at("skipped").at(0).at("path"), latin);
  EXPECT_EQ(record.at("prefill").at("tokens"), record.at("prompt_tokens"));
  EXPECT_EQ(record.at("decode").at("bytes_read"), record.at("decode").at("bytes_dense"));
  EXPECT_THAT(result.err, HasSubstr("skipped " + latin));
}

TEST_F(WithModel, SameSeedSameAnswer) {
  const auto answer = [](const char* seed) {
    return Run({"-p", "Tell me a story.", "-n", "12", "-q", "--temp", "1.5", "--seed", seed}).out;
  };
  const std::string first = answer("7");
  EXPECT_EQ(first, answer("7"));
  EXPECT_NE(first, answer("8"));
}

TEST_F(WithModel, StopStringEndsTheAnswer) {
  const Finished result = Run({"--json", "--no-chat-template", "-p", "The capital of France is",
                               "-n", "8", "--stop", "Paris"});
  const json record = json::parse(result.out);
  EXPECT_EQ(record.at("finish_reason"), "stop_string");
  EXPECT_THAT(record.at("text").get<std::string>(), Not(HasSubstr("Paris")));
}

TEST_F(WithModel, PromptLongerThanTheContextNamesBothLengths) {
  const Finished result = Run({"--json", "-c", "64", "-p", Prose(300)});
  EXPECT_EQ(result.exit_code, 3);
  const std::string message = json::parse(result.out).at("error").at("message");
  EXPECT_THAT(message, HasSubstr("64"));
  EXPECT_THAT(message, ::testing::ContainsRegex("[1-9][0-9][0-9] "));
}

TEST_F(WithModel, TooLittleKvMemoryIsAResourceError) {
  for (const char* size : {"1K", "1M"}) {
    const Finished result = Run({"-p", Prose(300), "-n", "1", "--kv-memory", size});
    EXPECT_EQ(result.exit_code, 4) << size << result.err;
  }
}

TEST_F(WithModel, TruncatedModelIsRefused) {
  std::ifstream in(*DefaultModelPath(), std::ios::binary);
  std::string head(4 << 20, '\0');
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  for (const size_t size : {head.size(), size_t{100}}) {
    const std::string path = WriteFile("truncated.gguf", head.substr(0, size));
    for (const char* command : {"run", "inspect"}) {
      std::vector<std::string> args = {command, "-m", path};
      if (args.front() == "run") args.insert(args.end(), {"-p", "x"});
      const Finished result = RunWinnow(args);
      EXPECT_EQ(result.exit_code, 3) << result.err;
      EXPECT_THAT(result.err, HasSubstr("truncated.gguf"));
    }
  }
}

TEST_F(WithModel, InterruptInMidPrefillKeepsARecord) {
  const std::string book = WriteFile("book.txt", Prose(5000));
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    ChildProcess child(Args("run", {"--json", "-f", book, "-p", "Sum up."}),
                       ErrorStream::kTerminal);
    ASSERT_TRUE(child.WaitForError("reading ["));
    child.Signal(signal);
    const Finished result = child.Finish();
    EXPECT_EQ(result.exit_code, 128 + signal);
    const json record = json::parse(result.out);
    EXPECT_EQ(record.at("finish_reason"), "cancelled");
    EXPECT_TRUE(record.at("ttft_ms").is_null());
    const json& document = record.at("documents").at(0);  // which was not read to its end
    EXPECT_GT(document.at("tokens"), 0);
    EXPECT_EQ(document.at("kept"), 0);
    EXPECT_EQ(document.at("read"), 0);
    EXPECT_THAT(result.err, HasSubstr("tokens/s"));
  }
}

TEST_F(WithModel, InterruptInMidAnswerKeepsTheText) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    ChildProcess child(Args("run", {"-p", "Write a long story.", "-n", "2000"}));
    ASSERT_TRUE(child.WaitForOutput(20));
    child.Signal(signal);
    const Finished result = child.Finish();
    EXPECT_EQ(result.exit_code, 128 + signal);
    EXPECT_GE(result.out.size(), 20u);
    EXPECT_THAT(result.err, HasSubstr("prompt tokens"));
  }
}

TEST_F(WithModel, ClosedPipeEndsQuietly) {
  ChildProcess child(Args("run", {"-p", "Write a long story.", "-n", "2000", "-q"}));
  ASSERT_TRUE(child.WaitForOutput(10));
  child.CloseOutput();
  const Finished result = child.Finish();
  EXPECT_EQ(result.exit_code, 141);
  EXPECT_THAT(result.err, IsEmpty());
}

TEST_F(WithModel, ClosedStderrDoesNotMatter) {
  const std::vector<std::string> args = Args("run", {"-p", "Write a long story.", "-n", "2000"});
  ChildProcess joined(args, ErrorStream::kOutput);
  ASSERT_TRUE(joined.WaitForOutput(10));
  joined.CloseOutput();
  EXPECT_EQ(joined.Finish().exit_code, 141);
  const Finished closed =
      ChildProcess(Args("run", {"-p", "Hello!", "-n", "2"}), ErrorStream::kClosed).Finish();
  EXPECT_EQ(closed.exit_code, 0);
  EXPECT_THAT(closed.out, Not(IsEmpty()));
}

TEST_F(WithModel, PeerIsReportedBesideUs) {
  const Finished result = Run({"--json", "-p", Prose(60), "-n", "4", "--peer", "llama.cpp"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json record = json::parse(result.out);
  const json& peer = record.at("peer");
  EXPECT_EQ(peer.at("engine"), "llama.cpp");
  EXPECT_EQ(peer.at("prompt_tokens"), record.at("prompt_tokens"));
  EXPECT_GT(peer.at("ttft_ms").get<double>(), 0);
  EXPECT_GT(peer.at("tpot_ms").get<double>(), 0);
  EXPECT_GT(peer.at("buffer_bytes").get<int64_t>(), peer.at("kv_bytes").get<int64_t>());
}

TEST_F(WithModel, AFailingPeerLeavesTheAnswerItsRecord) {
  const std::string path = WriteFile("vanishing.gguf", "");
  fs::remove(path);
  fs::create_symlink(*DefaultModelPath(), path);
  ChildProcess child({"run", "-m", path, "-t", "1", "-p", Prose(20), "-n", "60", "--peer",
                      "llama.cpp", "--no-chat-template"});
  ASSERT_TRUE(child.WaitForOutput(1));
  fs::remove(path);  // before the peer loads it
  const Finished result = child.Finish();
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr("llama.cpp failed: "), HasSubstr("prompt tokens")));
  EXPECT_THAT(result.out, Not(IsEmpty()));
}

}  // namespace
}  // namespace winnow
