// How the program is called: help, wrong flags and values, the form of errors.
#include <algorithm>
#include <string>
#include <vector>

#include "cli/harness_test.h"

namespace winnow {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::winnow::testing::ChildProcess;
using ::winnow::testing::ErrorStream;
using ::winnow::testing::ExpectUsageError;
using ::winnow::testing::Finished;
using ::winnow::testing::RunWinnow;
using Args = std::vector<std::string>;

TEST(Usage, HelpAndVersionSucceed) {
  const Finished help = RunWinnow({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* name : {"run", "chat", "inspect", "bench", "Exit codes", "winnow run -f"}) {
    EXPECT_THAT(help.out, HasSubstr(name));
  }
  for (const char* command : {"run", "chat", "inspect", "bench"}) {
    const Finished command_help = RunWinnow({command, "--help"});
    EXPECT_EQ(command_help.exit_code, 0);
    EXPECT_THAT(command_help.out, HasSubstr("--json")) << command;
    EXPECT_THAT(command_help.out, Not(HasSubstr("Exit codes"))) << command;
  }
  const Finished version = RunWinnow({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.out, HasSubstr("winnow "));
}

TEST(Usage, WrongCommandsAndFlagsOfferTheNearest) {
  ExpectUsageError(RunWinnow({}), "a command is missing: run, chat, inspect");
  ExpectUsageError(RunWinnow({"rum", "-p", "x"}), "did you mean 'run'?");
  ExpectUsageError(RunWinnow({"run", "--treads", "2"}), "did you mean '--threads'?");
  ExpectUsageError(RunWinnow({"run", "--max-token=3"}), "did you mean '--max-tokens'?");
  ExpectUsageError(RunWinnow({"run", "-p", "x", "--arm", "dence"}), "did you mean 'dense'?");
  ExpectUsageError(RunWinnow({"run", "-p", "x", "--peer", "llama.cp"}),
                   "did you mean 'llama.cpp'?");
  ExpectUsageError(RunWinnow({"bench", "--peer", "llama"}), "did you mean 'llama.cpp'?");
  // Before the model is looked for.
  ExpectUsageError(RunWinnow({"bench", "-m", "/no/such", "--arm", "dence"}),
                   "did you mean 'dense'?");
}

TEST(Usage, WrongValuesAreNamed) {
  ExpectUsageError(RunWinnow({"run", "-p", "x", "-t", "none"}), "--threads");
  ExpectUsageError(RunWinnow({"run", "-p", "x", "-t", "0"}), "--threads");
  ExpectUsageError(RunWinnow({"run", "-p", "x", "--kv-memory", "2X"}), "--kv-memory");
  for (const char* size : {"9223372036854775808", "8388608T", "99999999999999999999999"}) {
    ExpectUsageError(RunWinnow({"run", "-p", "x", "--kv-memory", size}), "--kv-memory");
  }
  ExpectUsageError(RunWinnow({"run", "-p", "x", "--repeat-last-n", "-2"}), "--repeat-last-n");
  ExpectUsageError(RunWinnow({"run", "-p", "x", "--top-k", "-3"}), "--top-k");
  for (const char* command : {"run", "bench", "eval"}) {
    ExpectUsageError(RunWinnow({command, "--seed", "-1"}), "--seed: Value -1 not in range 0 to");
  }
  ExpectUsageError(RunWinnow({"inspect", "-m", "x", "y"}), "exclude each other");
  const Finished stop = RunWinnow({"run", "-m", "/no/such", "-p", "x", "--stop", "caf\xe9"});
  EXPECT_EQ(stop.exit_code, 3);
  EXPECT_THAT(stop.err, HasSubstr("the stop string is not UTF-8"));
  ExpectUsageError(RunWinnow({"run", "-p", "x", "--kv-type", "f61"}), "f61");
  ExpectUsageError(RunWinnow({"run", "-p", "x", "--temp", "-1", "--top-p", "2"}), "top");
  ExpectUsageError(RunWinnow({"run", "-p", "x", "--prompt-file", "y"}), "--prompt-file");
}

TEST(Usage, JsonErrorsAreObjects) {
  const Finished result = RunWinnow({"run", "--json", "--treads", "2"});
  EXPECT_EQ(result.exit_code, 2);
  const json error = json::parse(result.out);
  EXPECT_EQ(error.at("schema"), "winnow.error/1");
  EXPECT_EQ(error.at("error").at("kind"), "usage");
  EXPECT_THAT(error.at("error").at("message").get<std::string>(), HasSubstr("--treads"));
  EXPECT_THAT(result.err, HasSubstr("--treads"));
}

TEST(Usage, ErrorsSurviveClosedStreams) {
  const std::vector<std::string> args = {"run", "--treads", "2"};
  const Finished closed = ChildProcess(args, ErrorStream::kClosed).Finish();
  EXPECT_EQ(closed.exit_code, 2);
  EXPECT_THAT(closed.out, IsEmpty());
  ChildProcess joined(args, ErrorStream::kOutput);
  joined.CloseOutput();
  EXPECT_EQ(joined.Finish().exit_code, 2);
}

TEST(Usage, HelpAfterAWrongCommandIsNoSuccess) {
  ExpectUsageError(RunWinnow({"rum", "--help"}), "did you mean 'run'?");
  ExpectUsageError(RunWinnow({"--verbos", "run"}), "did you mean '--verbose'?");
}

// Every spelling that CLI11 takes for true, before and behind the mistake, and without a command.
TEST(Usage, JsonErrorsInEverySpelling) {
  for (const Args& args : {Args{"run", "--json=true", "--treads", "2"},
                           {"run", "-t", "x", "--json=1"},
                           {"run", "--treads", "2", "--json=on"},
                           {"run", "--json=maybe"},
                           {"run", "--json", "-t"},
                           {"rum", "--json=true"},
                           {"--json", "rum"},
                           {"--json=yes"},
                           {"run", "-m", "/no/such", "--json=true", "-p", "x"}}) {
    const Finished result = RunWinnow(args);
    ASSERT_THAT(result.out, Not(IsEmpty())) << ::testing::PrintToString(args);
    EXPECT_EQ(json::parse(result.out).at("schema"), "winnow.error/1");
    EXPECT_THAT(result.exit_code, AnyOf(2, 3));
  }
  // The value of another flag, or switched off.
  ExpectUsageError(RunWinnow({"run", "-t", "0", "-p", "--json"}), "--threads");
  ExpectUsageError(RunWinnow({"run", "--json=false", "-t", "0"}), "--threads");
}

TEST(Usage, EmptyValuesAreRefused) {
  for (const char* flag : {"-m", "-p", "-f", "--stop", "--peer", "--chat-template", "--prompt-file",
                           "--kv-type", "--kv-memory", "--arm", "-t"}) {
    Args args = {"run", flag, ""};
    if (args[1] != "-p") args.insert(args.end(), {"-p", "x"});
    ExpectUsageError(RunWinnow(args), "winnow: ");
  }
  ExpectUsageError(RunWinnow({"run", "--stop", ""}), "--stop: an empty text");
  ExpectUsageError(RunWinnow({"chat", "-m", ""}), "--model: an empty text");
  ExpectUsageError(RunWinnow({"inspect", ""}), "file: an empty text");
  ExpectUsageError(RunWinnow({"bench", "--peer", ""}), "--peer");
  ExpectUsageError(RunWinnow({"bench", "--peer-fa", ""}), "--peer-fa");
}

TEST(Usage, NamesOfValuesOfferTheNearest) {
  ExpectUsageError(RunWinnow({"run", "-p", "x", "--kv-type", "q8_1"}), "did you mean 'q8_0'?");
  ExpectUsageError(RunWinnow({"bench", "--kv-type", "f61"}), "known: f16, f32, q8_0");
  ExpectUsageError(RunWinnow({"bench", "--peer-fa", "bast"}), "did you mean 'best'?");
  ExpectUsageError(RunWinnow({"bench", "--peer-fa", "maybe"}),
                   "--peer-fa: unknown choice 'maybe'; known: on, off, best");
  // Capitals do not matter: what is wrong here is the model.
  const Finished capitals =
      RunWinnow({"bench", "--kv-type", "F32", "--peer-fa", "ON", "-m", "/no/such"});
  EXPECT_EQ(capitals.exit_code, 3) << capitals.err;
}

TEST(Usage, ThePeerNeedsFlashAttentionForAQuantisedCache) {
  ExpectUsageError(RunWinnow({"bench", "-m", "/no/such", "--peer", "llama.cpp", "--peer-fa", "off",
                              "--kv-type", "q8_0"}),
                   "only with flash attention");
}

TEST(Usage, Sizes) {
  for (const char* size : {"1K", "1.5G", "2 GiB", "512mb", "1048576", ".5G", "1.g"}) {
    // Beyond the flags: there is no such model.
    EXPECT_EQ(RunWinnow({"run", "-p", "x", "-m", "/no/such", "--kv-memory", size}).exit_code, 3)
        << size;
  }
  for (const char* size : {"0", "0.0001", "-1", "1.5.5G", ".", "G", "1e9", "inf", "nan", "0x10",
                           "1 5", "8E", "8388608.0T"}) {
    ExpectUsageError(RunWinnow({"run", "-p", "x", std::string("--kv-memory=") + size}),
                     "such as 512M or 1.5G");
  }
}

TEST(Usage, ControlCharactersDoNotReachTheTerminal) {
  const std::string evil =
      "a\x1b[31mb\nc\xc2\x9b"
      "d\x9b\x7f";
  for (const Args& args : {Args{evil},
                           {"run", "--" + evil},
                           {"run", "-p", "x", "--arm", evil},
                           {"run", "-p", "x", "--peer", evil},
                           {"run", "-p", "x", "--kv-memory", evil},
                           {"run", "-p", "x", "-t", evil},
                           {"run", "-p", "x", "-f", evil},
                           {"inspect", evil},
                           {"run", "-p", "x", "-m", evil},
                           {"run", "--prompt-file", evil}}) {
    const Finished result = RunWinnow(args);
    EXPECT_THAT(result.exit_code, AnyOf(2, 3));
    EXPECT_THAT(result.err, AllOf(HasSubstr("a\\x1b[31mb\\nc\\u009bd\\x9b\\x7f"),
                                  Not(HasSubstr("\x1b")), Not(HasSubstr("\x9b"))));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
  }
  // JSON has its own escapes, and keeps the text.
  const std::string name = "a\x1b[31mb\nc\xc2\x9b";
  const json error = json::parse(RunWinnow({"run", "--json", "-p", "x", "--arm", name}).out);
  EXPECT_THAT(error.at("error").at("message").get<std::string>(), HasSubstr(name));
}

TEST(Usage, HelpThatCannotBeWrittenIsAnError) {
  for (const Args& args : {Args{"--help"}, {"run", "--help"}, {"--version"}}) {
    const Finished full = ChildProcess(args, ErrorStream::kPipe, "/dev/full").Finish();
    EXPECT_EQ(full.exit_code, 4) << full.err;
    EXPECT_THAT(full.err, HasSubstr("cannot write to standard output"));
  }
}

}  // namespace
}  // namespace winnow
