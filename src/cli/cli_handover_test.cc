// `winnow run --save-kv` and `--load-kv` as two programs: answers, records, exit codes.
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/harness_test.h"

namespace winnow {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::winnow::testing::ChildProcess;
using ::winnow::testing::ErrorStream;
using ::winnow::testing::ExpectUsageError;
using ::winnow::testing::Finished;
using ::winnow::testing::Prose;
using ::winnow::testing::RunWinnow;
using ::winnow::testing::TinyModel;
using ::winnow::testing::WithModel;
using ::winnow::testing::WriteFile;
using StringList = std::vector<std::string>;

const std::string kPrune =
    "prefill=entroprefill,uncalibrated=1,layers=1,v=0,eps=0.95,eps_audit=0.9,chunk=32,must_pay=0";

class Handover : public ::testing::Test {
 protected:
  StringList With(const StringList& more) const {
    StringList args = {"run", "-m", model_, "-t", "1", "-q"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  StringList Reading(const StringList& more) const {
    StringList args = With({"-f", note_, "-p", "What carries letters?"});
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  static json Record(const StringList& args) {
    StringList with_json = args;
    with_json.insert(with_json.end(), {"--json"});
    const Finished result = RunWinnow(with_json);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  }

  const std::string model_ = TinyModel("tiny.gguf", {.context_length = 2048});
  const std::string note_ = WriteFile("note.txt", Prose(120));
  const std::string file_ = testing::TemporaryFolder() + "/prompt.kv";
};

TEST_F(Handover, TwoProcessesAnswerAsOne) {
  for (const std::string& arm : {std::string("dense"), kPrune, kPrune + ",pruned_kv=drop"}) {
    const json whole = Record(Reading({"--arm", arm, "-n", "12"}));
    const json saved = Record(Reading({"--arm", arm, "--save-kv", file_}));
    const json loaded = Record(With({"--load-kv", file_, "-n", "12"}));
    EXPECT_TRUE(whole.at("kv_file").is_null());
    EXPECT_EQ(saved.at("tokens").size(), 1u);
    EXPECT_EQ(loaded.at("tokens"), whole.at("tokens")) << arm;
    EXPECT_EQ(loaded.at("text"), whole.at("text"));
    EXPECT_EQ(loaded.at("finish_reason"), whole.at("finish_reason"));
    EXPECT_EQ(loaded.at("prompt_tokens"), whole.at("prompt_tokens"));
    EXPECT_EQ(loaded.at("prefill").at("tokens"), 0);
    for (const json& record : {saved, loaded}) {
      const json& file = record.at("kv_file");
      EXPECT_EQ(file.at("path"), file_);
      EXPECT_EQ(file.at("payload_bytes"), file.at("payload_formula_bytes"));
      EXPECT_EQ(file.at("payload_bytes").get<int64_t>() + file.at("metadata_bytes").get<int64_t>(),
                static_cast<int64_t>(fs::file_size(file_)));
      if (arm == "dense") {
        EXPECT_EQ(file.at("payload_bytes"), file.at("payload_unpruned_bytes"));
      } else {
        EXPECT_LT(file.at("payload_bytes"), file.at("payload_unpruned_bytes"));
      }
      EXPECT_GT(file.at("seconds").get<double>(), 0);
    }
  }
}

// Without -n too, where the context leaves less than the default.
TEST_F(Handover, TheContextEndsTheAnswerWhereItWould) {
  const json whole = Record(Reading({"-c", "800"}));
  ASSERT_EQ(whole.at("tokens").size(), 800 - whole.at("prompt_tokens").get<size_t>());
  ASSERT_LT(whole.at("tokens").size(), 512u);
  Record(Reading({"-c", "800", "--save-kv", file_}));
  EXPECT_EQ(Record(With({"-c", "800", "--load-kv", file_})).at("tokens"), whole.at("tokens"));
}

TEST_F(Handover, TheTableSaysWhatWasHandedOver) {
  StringList args = Reading({"--save-kv", file_, "--arm", kPrune});
  std::erase(args, "-q");
  const Finished result = RunWinnow(args);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, AllOf(HasSubstr("KV file " + file_), HasSubstr("unpruned")));
}

TEST_F(Handover, OtherModelsAndBrokenFilesAreBadInput) {
  const Finished none = RunWinnow(With({"--load-kv", "/no/such/file.kv"}));
  EXPECT_EQ(none.exit_code, 3);
  EXPECT_THAT(none.err, HasSubstr("/no/such/file.kv"));
  RunWinnow(Reading({"--save-kv", file_}));
  const Finished other = RunWinnow({"run", "-t", "1", "--load-kv", file_, "-m",
                                    TinyModel("other.gguf", {.seed = 2, .context_length = 2048})});
  EXPECT_EQ(other.exit_code, 3);
  EXPECT_THAT(other.err, HasSubstr("it is of the model with hash"));
  const Finished dtype = RunWinnow(With({"--load-kv", file_, "--kv-type", "f32"}));
  EXPECT_EQ(dtype.exit_code, 3);
  EXPECT_THAT(dtype.err, HasSubstr("f16 in the file, f32 here"));
  fs::resize_file(file_, fs::file_size(file_) - 1);
  const Finished cut = RunWinnow(With({"--load-kv", file_, "--json"}));
  EXPECT_EQ(cut.exit_code, 3);
  EXPECT_EQ(json::parse(cut.out).at("error").at("kind"), "input");
  EXPECT_EQ(RunWinnow(Reading({"--save-kv", "/no/such/folder/x.kv"})).exit_code, 4);
}

TEST_F(Handover, WhatIsThereIsNotTakenForAFile) {
  ExpectUsageError(RunWinnow(Reading({"--save-kv", note_})), "a document of -f");
  const std::string link = file_ + ".link";
  fs::create_symlink(file_, link);
  for (const std::string& path : {link, fs::path(file_).parent_path().string()}) {
    const Finished result = RunWinnow(Reading({"--save-kv", path}));
    EXPECT_EQ(result.exit_code, 4) << path;
    EXPECT_THAT(result.err, HasSubstr("no plain file")) << path;
  }
}

TEST_F(Handover, PruningIsToldAndNotContradicted) {
  const Finished compared = RunWinnow({"compare", "-t", "1", "-m", model_, "-f", note_, "-p",
                                       "Which?", "-n", "2", "--arm", kPrune, "--json"});
  ASSERT_EQ(compared.exit_code, 0) << compared.err;
  EXPECT_TRUE(json::parse(compared.out).at("arms").at(1).at("prefill").contains("pruning"));
  ExpectUsageError(RunWinnow(Reading({"--arm", kPrune, "--chunk-tokens", "9"})),
                   "contradicts the arm");
  const Finished beyond = RunWinnow(Reading({"--protect", note_ + ":99999-99999"}));
  EXPECT_EQ(beyond.exit_code, 3);
  EXPECT_THAT(beyond.err, HasSubstr("ends before line 99999"));
}

TEST_F(Handover, ThePromptIsThatOfTheFile) {
  RunWinnow(Reading({"--save-kv", file_}));
  for (const StringList& more : {StringList{"-p", "x"},
                                 {"--prompt-file", note_},
                                 {"-f", note_},
                                 {"--system", "x"},
                                 {"--chunk-tokens", "9"},
                                 {"--no-chat-template"},
                                 {"--save-kv", file_},
                                 {"--peer", "llama.cpp"}}) {
    StringList args = With({"--load-kv", file_});
    args.insert(args.end(), more.begin(), more.end());
    ExpectUsageError(RunWinnow(args), more[0] + " cannot be given with it");
  }
  ExpectUsageError(RunWinnow(With({"--load-kv", file_, "--arm", kPrune})), "cannot prune");
  ExpectUsageError(RunWinnow(With({"--load-kv", ""})), "--load-kv: an empty text");
  ExpectUsageError(RunWinnow(Reading({"--save-kv", file_, "-n", "2"})), "-n is for");
}

TEST_F(WithModel, AnInterruptLeavesNoHalfFile) {
  const std::string folder = testing::TemporaryFolder();
  const std::string book = WriteFile("book.txt", Prose(3000));
  ChildProcess child(Args("run", {"-f", book, "-p", "Sum up.", "--save-kv", folder + "/x.kv"}),
                     ErrorStream::kTerminal);
  ASSERT_TRUE(child.WaitForError("reading ["));
  child.Signal(SIGINT);
  EXPECT_EQ(child.Finish().exit_code, 128 + SIGINT);
  EXPECT_TRUE(fs::is_empty(folder));
}

}  // namespace
}  // namespace winnow
