// Prompts of every task: lengths, answers, determinism; and files of samples.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "core/error.h"
#include "eval/evaluation.h"
#include "eval/jsonl_task.h"
#include "eval/task.h"
#include "testing/paths.h"
#include "testing/tiny_gguf.h"

namespace winnow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Folder() {
  static const std::string kFolder = testing::TemporaryFolder();
  return kFolder;
}

// Numbered sentences: any stretch tells where it was taken from.
std::string BookText(int n_sentences) {
  std::string text = "\n  ";
  for (int i = 0; i < n_sentences; ++i) {
    text += "Sentence " + std::to_string(i) + (i % 3 == 0 ? " is short.\n" : " goes on a bit. ");
  }
  return text;
}

size_t Occurrences(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

std::string MessageOf(const std::function<void()>& function, ErrorKind kind) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

class Tasks : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string path = Folder() + "/tiny.gguf";
    testing::WriteTinyGguf(path, {});
    shared_tokenizer = Tokenizer::Load(path);
  }
  static void TearDownTestSuite() { shared_tokenizer = nullptr; }

  // A token of the tiny vocabulary is about a character.
  TaskInput Input(int64_t length, uint64_t seed = 1) const {
    return {.tokenizer = shared_tokenizer.get(),
            .book = &book_,
            .length = length,
            .continuation_tokens = 50,
            .seed = seed};
  }
  static std::string TextOf(const EvalSample& sample) {
    return shared_tokenizer->Decode(sample.tokens);
  }

  inline static std::unique_ptr<Tokenizer> shared_tokenizer;
  Book book_{{{.id = "a", .text = BookText(400)}, {.id = "b", .text = BookText(400)}}};
};

TEST_F(Tasks, FillTheLengthAndNoMore) {
  for (const Task& task : AllTasks()) {
    for (const int64_t length : {1200, 3000}) {
      const EvalSample sample = MakeSample(task, Input(length), 0);
      const auto used = static_cast<int64_t>(sample.tokens.size()) + sample.max_new_tokens;
      EXPECT_LE(used, length) << task.name;
      // No unit of filler (a pair of identifiers is the longest) has 120 tokens.
      EXPECT_GT(used, length - 120) << task.name;
      EXPECT_EQ(sample.task, task.name);
      EXPECT_EQ(sample.length, length);
      EXPECT_EQ(sample.answers.empty(), !sample.continuation.empty());
    }
  }
}

TEST_F(Tasks, SameSeedSameSample) {
  for (const Task& task : AllTasks()) {
    const EvalSample first = MakeSample(task, Input(1500), 3);
    const EvalSample again = MakeSample(task, Input(1500), 3);
    EXPECT_EQ(first.tokens, again.tokens) << task.name;
    EXPECT_EQ(first.answers, again.answers) << task.name;
    EXPECT_NE(first.tokens, MakeSample(task, Input(1500), 4).tokens) << task.name;
    EXPECT_NE(first.tokens, MakeSample(task, Input(1500, 2), 3).tokens) << task.name;
    // What is asked does not depend on the length.
    EXPECT_EQ(first.answers, MakeSample(task, Input(2500), 3).answers) << task.name;
  }
}

TEST_F(Tasks, NeedlesHoldTheirAnswerOnce) {
  for (const auto& [name, n_keys] : {std::pair{"needle", 1}, std::pair{"multikey", 4}}) {
    for (int i = 0; i < 20; ++i) {
      const EvalSample sample = MakeSample(FindTask(name), Input(1500), i);
      const std::string text = TextOf(sample);
      ASSERT_EQ(sample.answers.size(), 1u);
      EXPECT_EQ(Occurrences(text, sample.answers.front()), 1u);
      // Each key with its value; the question and the answer's first words name a key as well.
      EXPECT_EQ(Occurrences(text, "The special magic number for "), n_keys + 1u);
      EXPECT_EQ(Occurrences(text, "Sentence "),
                Occurrences(text, " is short.") + Occurrences(text, " goes on a bit."));
    }
  }
}

TEST_F(Tasks, VariablesFormOneChain) {
  const EvalSample sample = MakeSample(FindTask("variables"), Input(1500), 0);
  const std::string text = TextOf(sample);
  ASSERT_EQ(sample.answers.size(), 5u);
  size_t before = 0;
  for (size_t i = 0; i < 5; ++i) {
    const size_t at = text.find("VAR " + sample.answers[i] + " = " +
                                (i == 0 ? "" : "VAR " + sample.answers[i - 1] + "\n"));
    ASSERT_NE(at, std::string::npos);
    EXPECT_GE(at, before);  // in causal order
    before = at;
  }
}

TEST_F(Tasks, FrequentWordsAreThoseOfRanksTwoToFour) {
  const EvalSample sample = MakeSample(FindTask("frequent"), Input(3000), 0);
  const std::string text = TextOf(sample);
  ASSERT_EQ(sample.answers.size(), 3u);
  const size_t dots = Occurrences(text, " ...") + 1;
  size_t before = dots;
  for (const std::string& word : sample.answers) {
    const size_t n = Occurrences(text, word);
    EXPECT_LT(n, before);
    EXPECT_GT(n, 0u);
    before = n;
  }
  // Rank k has n / (k² ζ(2)) copies: four times fewer on rank 2 than on rank 1.
  EXPECT_NEAR(static_cast<double>(dots) / Occurrences(text, sample.answers[0]), 4, 0.3);
}

TEST_F(Tasks, KeyValueAsksForOneOfItsPairs) {
  for (int i = 0; i < 10; ++i) {
    const EvalSample sample = MakeSample(FindTask("keyvalue"), Input(1500), i);
    const std::string text = TextOf(sample);
    const std::string& value = sample.answers.front();
    EXPECT_EQ(value.size(), 36u);
    const size_t at = text.find(value);
    ASSERT_NE(at, std::string::npos);
    const std::string key = text.substr(at - 40, 36);
    EXPECT_EQ(Occurrences(text, key), 3u);  // pair, question, answer's first words
    EXPECT_EQ(Occurrences(text, value), 1u);
  }
}

TEST_F(Tasks, BooksGoOnWithTheirOwnTokens) {
  const EvalSample sample = MakeSample(FindTask("book"), Input(1000), 0);
  EXPECT_EQ(sample.tokens.size(), 950u);
  EXPECT_EQ(sample.continuation.size(), 50u);
  EXPECT_EQ(sample.max_new_tokens, 50);
  std::string text = TextOf(sample) + shared_tokenizer->Decode(sample.continuation);
  text = text.substr(text.find("Sentence"));
  EXPECT_NE((BookText(400) + "\n\n" + BookText(400)).find(text), std::string::npos);
}

TEST_F(Tasks, WhatDoesNotFitIsRefused) {
  for (const Task& task : AllTasks()) {
    const std::string message =
        MessageOf([&] { MakeSample(task, Input(40), 0); }, ErrorKind::kInput);
    EXPECT_THAT(message, HasSubstr("40 tokens")) << task.name;
    if (!task.needs_text) continue;
    EXPECT_THAT(MessageOf([&] { MakeSample(task, Input(500'000), 0); }, ErrorKind::kInput),
                HasSubstr("--text"));
  }
  EXPECT_THAT(MessageOf([] { FindTask("neadle"); }, ErrorKind::kUsage),
              AllOf(HasSubstr("did you mean 'needle'?"), HasSubstr("keyvalue")));
}

TEST_F(Tasks, EvaluationsAreCheckedBeforeTheyRun) {
  Evaluation evaluation;
  evaluation.tasks = {&FindTask("keyvalue"), &FindTask("needle")};
  evaluation.lengths = {1500, 9000};
  evaluation.input = Input(0);
  EXPECT_THAT(MessageOf([&] { CheckEvaluation(evaluation, 8192); }, ErrorKind::kInput),
              AllOf(HasSubstr("9000"), HasSubstr("8192")));
  CheckEvaluation(evaluation, 9000);
  const Book none;
  evaluation.input.book = &none;
  EXPECT_THAT(MessageOf([&] { CheckEvaluation(evaluation, 9000); }, ErrorKind::kInput),
              AllOf(HasSubstr("needle"), HasSubstr("--text")));
}

class Jsonl : public Tasks {
 protected:
  std::vector<EvalSample> Read(const std::string& lines, int64_t most = 0) const {
    std::ofstream(path_, std::ios::binary) << lines;
    return ReadJsonl(path_, Input(0), 2000, most);
  }
  std::string Refused(const std::string& lines) const {
    return MessageOf([&] { Read(lines); }, ErrorKind::kInput);
  }
  std::string path_ = Folder() + "/samples.jsonl";
};

TEST_F(Jsonl, ColumnsBecomeSamples) {
  const auto samples = Read(
      R"({"context": "The code is 17.", "question": "What is it?", "answer_prefix": "It is",)"
      R"( "answer": ["17", "18"], "max_new_tokens": 8, "task": "niah", "extra": 1})"
      "\n\n"
      R"({"context": "The code is 17.", "question": "Or?", "answers": "no", "max_new_tokens": 4.0,)"
      R"( "task": "qa_1", "answer_prefix": null})"
      "\r\n"
      R"({"context": "", "question": "Or?", "answer": "no", "max_new_tokens": 4, "match": "part"})");
  ASSERT_EQ(samples.size(), 3u);
  EXPECT_EQ(samples[0].task, "niah");
  EXPECT_EQ(samples[0].answers, (std::vector<std::string>{"17", "18"}));
  EXPECT_EQ(samples[0].match, Match::kAll);
  EXPECT_EQ(samples[0].length, 0);
  EXPECT_THAT(TextOf(samples[0]), HasSubstr("The code is 17."));
  EXPECT_TRUE(TextOf(samples[0]).ends_with("\nIt is"));
  EXPECT_EQ(samples[1].match, Match::kPart);
  EXPECT_EQ(samples[1].max_new_tokens, 4);
  EXPECT_EQ(samples[1].cluster, samples[0].cluster);
  EXPECT_EQ(samples[2].task, "jsonl");
  EXPECT_EQ(samples[2].match, Match::kPart);
  EXPECT_NE(samples[2].cluster, samples[0].cluster);
}

TEST_F(Jsonl, AsManyOfEachTaskAsAsked) {
  std::string lines;
  for (int i = 0; i < 6; ++i) {
    lines += R"({"context": "x", "question": "y", "answer": "z", "max_new_tokens": 1, "task": ")" +
             std::string(i % 2 == 0 ? "a" : "b") + "\"}\n";
  }
  EXPECT_EQ(Read(lines).size(), 6u);
  const auto samples = Read(lines, 2);
  ASSERT_EQ(samples.size(), 4u);
  EXPECT_EQ(samples[3].task, "b");
  EXPECT_EQ(samples[3].index, 1);
}

TEST_F(Jsonl, BadLinesAreNamed) {
  const std::string good =
      R"({"context": "x", "question": "y", "answer": "z", "max_new_tokens": 1})";
  EXPECT_THAT(Refused(good + "\n{\"context\": "), HasSubstr(path_ + ":2: not a line of JSON"));
  EXPECT_THAT(Refused("[1]"), HasSubstr(":1: not a JSON object"));
  EXPECT_THAT(Refused(R"({"context": "x", "question": "y", "max_new_tokens": 1})"),
              HasSubstr(":1: no column 'answer'"));
  EXPECT_THAT(Refused(R"({"question": "y", "answer": "z", "max_new_tokens": 1})"),
              HasSubstr("no column 'context'"));
  EXPECT_THAT(Refused(R"({"context": 3, "question": "y", "answer": "z", "max_new_tokens": 1})"),
              HasSubstr("'context' is not a text"));
  for (const char* count : {"0", "-1", "1.5", "\"3\"", "1e300"}) {
    EXPECT_THAT(Refused(R"({"context": "x", "question": "y", "answer": "z", "max_new_tokens": )" +
                        std::string(count) + "}"),
                HasSubstr("'max_new_tokens' is not a whole number"));
  }
  EXPECT_THAT(Refused(R"({"context": "x", "question": "y", "answer": [], "max_new_tokens": 1})"),
              HasSubstr("'answer' is empty"));
  EXPECT_THAT(Refused(R"({"context": "x", "question": "y", "answer": [1], "max_new_tokens": 1})"),
              HasSubstr("neither a text nor a list"));
  EXPECT_THAT(Refused(R"({"context": "", "question": "", "answer": "z", "max_new_tokens": 1})"),
              HasSubstr(":1: the prompt is empty"));
  EXPECT_THAT(Refused(R"({"context": "x", "question": "y", "answer": "z", "max_new_tokens": 1,)"
                      R"( "match": "some"})"),
              HasSubstr("'match' is 'some'"));
  EXPECT_THAT(
      Refused(R"({"context": "x", "question": "y", "answer": "z", "max_new_tokens": 1999})"),
      AllOf(HasSubstr(":1: the prompt has"), HasSubstr("2000")));
  EXPECT_THAT(Refused("\n"), HasSubstr("no samples"));
  EXPECT_THAT(MessageOf([&] { ReadJsonl("/no/such", Input(0), 100, 0); }, ErrorKind::kInput),
              HasSubstr("/no/such: cannot be read"));
}

// Prompts of a real book and tokenizer, as they will be judged.
TEST(RealBook, NeedlesAreWhereTheyShouldBe) {
  const auto model = testing::DefaultModelPath();
  const auto path = testing::SharedDataPath("pride_and_prejudice.txt");
  if (!model || !path) GTEST_SKIP() << "the default model or the shared text is absent";
  const auto tokenizer = Tokenizer::Load(*model);
  const Book book(LoadDocuments({*path}, true).documents);
  for (const Task& task : AllTasks()) {
    const EvalSample sample = MakeSample(
        task, {.tokenizer = tokenizer.get(), .book = &book, .length = 4096, .seed = 1}, 0);
    const auto used = static_cast<int64_t>(sample.tokens.size()) + sample.max_new_tokens;
    EXPECT_LE(used, 4096) << task.name;
    EXPECT_GT(used, 4096 - 250) << task.name;  // no sentence in reach is longer
    for (const std::string& answer : sample.answers) {
      EXPECT_THAT(tokenizer->Decode(sample.tokens), HasSubstr(answer));
    }
  }
}

}  // namespace
}  // namespace winnow
