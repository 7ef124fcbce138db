// `winnow chat` as a program: turns, commands, failures, signals.
#include <csignal>
#include <string>
#include <vector>

#include "cli/harness_test.h"

namespace winnow {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::winnow::testing::ChildProcess;
using ::winnow::testing::Finished;
using ::winnow::testing::JsonLines;
using ::winnow::testing::Prose;
using ::winnow::testing::RunWinnow;
using ::winnow::testing::TinyModel;
using ::winnow::testing::WithModel;
using ::winnow::testing::WriteFile;

// A chat with a tiny model that takes 512 tokens, few of which stand for more than a byte.
Finished Chat(const std::vector<std::string>& more, const std::string& input) {
  const std::string model = TinyModel("chat.gguf", {});
  std::vector<std::string> args = {"chat", "-m", model, "-t", "1", "-n", "2", "--json"};
  args.insert(args.end(), more.begin(), more.end());
  return RunWinnow(args, input);
}

// Positions are divided by next to nothing, so that no logit is finite.
TEST(TinyChat, AFailedTurnLeavesNoTrace) {
  const std::string path = TinyModel("failing.gguf", {.rope_linear_factor = 1e-40F});
  const Finished result =
      RunWinnow({"chat", "-m", path, "-t", "1", "--json", "-q"}, "hello\nhello\n");
  EXPECT_GT(result.exit_code, 0);
  const std::vector<json> turns = JsonLines(result.out);
  ASSERT_EQ(turns.size(), 2u);
  for (const json& turn : turns) {
    EXPECT_EQ(turn.at("finish_reason"), "failed");
    EXPECT_EQ(turn.at("turn"), 1);  // neither is part of the conversation
  }
}

TEST(TinyChat, ADocumentThatMakesATurnFailIsLeftOutAgain) {
  const std::string big = WriteFile("big.txt", Prose(400));
  const Finished result = Chat({}, "/add " + big + "\nhello\nhello\n");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("left out again: the question and 1 document(s): " + big));
  const std::vector<json> lines = JsonLines(result.out);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].at("schema"), "winnow.error/1");
  EXPECT_EQ(lines[1].at("schema"), "winnow.chat/1");
  EXPECT_TRUE(lines[1].at("documents").empty());
}

TEST(TinyChat, ADocumentStaysWhereTheQuestionWasTooLong) {
  const std::string note = WriteFile("note.txt", "A note.");
  const Finished result = Chat({"-f", note}, Prose(400) + "\nhello\n");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, Not(HasSubstr("left out")));
  const std::vector<json> lines = JsonLines(result.out);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1].at("documents").size(), 1u);
}

TEST(TinyChat, ResetReturnsToTheStart) {
  const std::string note = WriteFile("first.txt", "A note.");
  const std::string other = WriteFile("other.txt", "Another one.");
  const Finished result = Chat({"-f", note}, "hello\n/add " + other + "\n/reset\nhello\n/reset\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("forgotten; 1 document(s) of -f"));
  const std::vector<json> turns = JsonLines(result.out);
  ASSERT_EQ(turns.size(), 2u);
  EXPECT_EQ(turns[1].at("turn"), 1);
  ASSERT_EQ(turns[1].at("documents").size(), 1u);
  EXPECT_EQ(turns[1].at("documents").at(0).at("id"), note);
  EXPECT_EQ(turns[1].at("prompt_tokens"), turns[0].at("prompt_tokens"));
  EXPECT_EQ(turns[1].at("tokens"), turns[0].at("tokens"));
}

TEST(TinyChat, AByteOrderMarkIsNotPartOfTheFirstQuestion) {
  const std::vector<json> turns = JsonLines(Chat({}, "\xEF\xBB\xBFhello\n/reset\nhello\n").out);
  ASSERT_EQ(turns.size(), 2u);
  EXPECT_EQ(turns[0].at("prompt_tokens"), turns[1].at("prompt_tokens"));
}

TEST_F(WithModel, ChatKeepsItsPages) {
  const std::string note = WriteFile("notes.txt", Prose(120));
  const Finished result =
      RunWinnow(Args("chat", {"--json", "-f", note, "-n", "20"}),
                "What is this about?\n/stats\nSay it in one word.\n/reset\nHello!\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::vector<json> turns = JsonLines(result.out);
  ASSERT_EQ(turns.size(), 3u);
  EXPECT_EQ(turns[0].at("schema"), "winnow.chat/1");
  EXPECT_EQ(turns[0].at("turn"), 1);
  EXPECT_EQ(turns[1].at("turn"), 2);
  EXPECT_EQ(turns[2].at("turn"), 1);
  EXPECT_EQ(turns[0].at("documents").size(), 1u);
  // The second turn's prompt is the first one, its answer and the new question; all whole pages (32
  // tokens) of what was stored are found again, the last drawn token never was stored.
  const int64_t stored = turns[0].at("prompt_tokens").get<int64_t>() +
                         static_cast<int64_t>(turns[0].at("tokens").size()) - 1;
  EXPECT_GT(turns[1].at("prompt_tokens").get<int64_t>(), stored);
  EXPECT_EQ(turns[1].at("reused_tokens").get<int64_t>(), stored / 32 * 32);
  EXPECT_THAT(result.err, HasSubstr("prompt tokens"));
}

TEST_F(WithModel, ChatCommandsAndErrors) {
  const std::string note = WriteFile("heron.txt", "The code word is heron.\n");
  const Finished result =
      RunWinnow(Args("chat", {"-n", "12"}), "/help\n/ad x\n/add /no/such\n/add " + note +
                                                "\nWhat is the code word?\n/add " + note +
                                                "\nAgain?\n/quit\nnever read\n");
  EXPECT_EQ(result.exit_code, 2);  // of the first failure
  EXPECT_THAT(result.err, AllOf(HasSubstr("/reset"), HasSubstr("did you mean '/add'?"),
                                HasSubstr("/no/such"), HasSubstr("1 document(s)")));
  EXPECT_THAT(result.out, HasSubstr("heron"));
}

TEST_F(WithModel, SignalsEndAPipedChatAfterTheAnswerSoFar) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    ChildProcess child(Args("chat", {"-n", "2000", "-q"}));
    child.WriteInput("Write a long story.\nAnother one.\n");
    ASSERT_TRUE(child.WaitForOutput(20));
    child.Signal(signal);
    const Finished result = child.Finish();
    EXPECT_EQ(result.exit_code, 128 + signal);
    EXPECT_EQ(result.out.back(), '\n');
  }
}

}  // namespace
}  // namespace winnow
