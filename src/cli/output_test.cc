// What people read: numbers, the progress line, the closing table; and JSON that never throws.
#include "cli/output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/chat_session.h"
#include "cli/progress.h"
#include "cli/run_record.h"
#include "testing/paths.h"

namespace winnow {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Format, Counts) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(1234567), "1,234,567");
  EXPECT_EQ(FormatCount(-123456), "-123,456");
}

TEST(Format, Seconds) {
  EXPECT_EQ(FormatSeconds(0.416), "0.42 s");
  EXPECT_EQ(FormatSeconds(73.04), "73.0 s");
}

TEST(Json, InvalidUtf8IsReplaced) {
  EXPECT_EQ(DumpJson({{"text", "caf\xe9"}}, /*indent=*/false), "{\"text\":\"caf\xef\xbf\xbd\"}");
}

TEST(Escape, WhatWouldCommandATerminalIsSpelledOut) {
  EXPECT_EQ(EscapeControls("plain, caf\xc3\xa9 \xf0\x9f\x98\x80"),
            "plain, caf\xc3\xa9 \xf0\x9f\x98\x80");
  EXPECT_EQ(EscapeControls("a\n\r\tb"), "a\\n\\r\\tb");
  EXPECT_EQ(EscapeControls(std::string_view("\0\x1b[1m\x7f", 6)), "\\x00\\x1b[1m\\x7f");
  EXPECT_EQ(EscapeControls("\xc2\x9b\xc2\xa0"), "\\u009b\xc2\xa0");  // C1; a space is none
  // Overrides of the writing direction, which the linter takes for ours.
  // NOLINTNEXTLINE(misc-misleading-bidirectional)
  EXPECT_EQ(EscapeControls("\xe2\x80\xae\xe2\x81\xa6"), "\\u202e\\u2066");
  EXPECT_EQ(EscapeControls("\x9b\xe2\x80"), "\\x9b\\xe2\\x80");  // not UTF-8
}

TEST(Progress, Line) {
  EXPECT_EQ(
      FormatProgress({.tokens_done = 512, .tokens_total = 2048, .seconds = 2}),
      "reading [######                  ]  25 %  512 of 2,048 tokens, 256 tokens/s, 6 s left");
  // Nothing to divide by.
  EXPECT_THAT(FormatProgress({}), AllOf(HasSubstr("  0 %"), Not(HasSubstr("tokens/s"))));
  EXPECT_THAT(FormatProgress({.tokens_done = 8, .tokens_total = 8, .seconds = 1}),
              HasSubstr("[########################] 100 %"));
}

TEST(Table, ShowsThePeerAndTheRatio) {
  RunRecord record;
  record.result.prompt_tokens = 6812;
  record.result.ttft_seconds = 8;
  record.result.decode_seconds = 0.1;
  record.result.tokens = {1, 2, 3};
  EXPECT_THAT(FormatTable(record),
              AllOf(ContainsRegex("prompt tokens +6,812\n"), ContainsRegex("ms a token +50.0\n"),
                    Not(HasSubstr("llama.cpp"))));
  record.peer = {
      .prompt_tokens = 6812, .ttft_seconds = 10, .decode_steps = 2, .decode_seconds = 0.15};
  EXPECT_THAT(FormatTable(record),
              AllOf(ContainsRegex("time to first token +8.00 s +10.0 s +1.25 x\n"),
                    ContainsRegex("ms a token +50.0 +75.0 +1.50 x\n")));
}

TEST(Table, WhatIsUnknownIsNull) {
  RunRecord record;
  record.arm = "dense";
  record.result.finish_reason = FinishReason::kCancelled;
  const nlohmann::ordered_json json = ToJson(record);
  EXPECT_TRUE(json.at("ttft_ms").is_null());
  EXPECT_TRUE(json.at("tpot_ms").is_null());
  EXPECT_TRUE(json.at("peer").is_null());
  EXPECT_EQ(json.at("finish_reason"), "cancelled");
  EXPECT_TRUE(json.at("error").is_null());
  EXPECT_TRUE(json.at("peer_error").is_null());
  record.peer_error = "no room";
  EXPECT_EQ(ToJson(record).at("peer_error"), "no room");
}

TEST(Errors, KindsHaveExitCodes) {
  EXPECT_EQ(DescribeError(ErrorKind::kResource).exit_code, 4);
  EXPECT_EQ(DescribeError(std::nullopt).exit_code, 1);
  EXPECT_EQ(DescribeError(std::nullopt).name, "internal");
}

TEST(ChatHistory, HoldsNothingOfAStopString) {
  const auto path = testing::DefaultModelPath();
  if (!path.has_value()) GTEST_SKIP() << "the default model is absent: run `make deps`";
  const auto tokenizer = Tokenizer::Load(*path);
  const auto kept = [&](const std::string& said, const std::string& shown) {
    RequestResult result;
    result.finish_reason = FinishReason::kStopString;
    result.tokens = tokenizer->Encode(said, false, false);
    result.text = shown;
    result.tokens.resize(KeptAnswerTokens(*tokenizer, result));
    return tokenizer->Decode(result.tokens);
  };
  EXPECT_EQ(kept("One two.\nUser: no", "One two.\n"), "One two.\n");
  // The space is part of the token that the stop string begins in.
  EXPECT_EQ(kept("The river ends", "The "), "The");
  // The emoji's tokens: a part of a character was not shown.
  EXPECT_EQ(kept("Good 😀", "Good"), "Good");
  EXPECT_EQ(kept("Good 😀 day", "Good 😀"), "Good 😀");
  EXPECT_EQ(kept("ends", ""), "");

  RequestResult ended;
  ended.finish_reason = FinishReason::kEndToken;
  ended.tokens = tokenizer->Encode("Yes<|im_end|>", false, /*parse_special=*/true);
  EXPECT_EQ(KeptAnswerTokens(*tokenizer, ended), static_cast<int64_t>(ended.tokens.size()) - 1);
}

}  // namespace
}  // namespace winnow
