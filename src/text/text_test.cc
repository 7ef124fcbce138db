#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/rng.h"
#include "testing/expect_error.h"
#include "testing/paths.h"
#include "text/document.h"
#include "text/read_file.h"
#include "text/tokenizer.h"
#include "text/utf8.h"
#include "text/vocabularies_test.h"

namespace winnow {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using winnow::testing::ExpectInputError;
using winnow::testing::SharedTokenizer;
using winnow::testing::TemporaryFolder;

void Write(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(Utf8, FindsTheFirstInvalidByte) {
  EXPECT_EQ(FirstInvalidUtf8(""), -1);
  EXPECT_EQ(FirstInvalidUtf8("plain, é, 水, 😀, \xF4\x8F\xBF\xBF"), -1);
  EXPECT_EQ(FirstInvalidUtf8("ab\xFF"), 2);
  EXPECT_EQ(FirstInvalidUtf8("ab\xE6\xB0"), 2);         // cut off
  EXPECT_EQ(FirstInvalidUtf8("\xC0\x80"), 0);           // overlong
  EXPECT_EQ(FirstInvalidUtf8("a\xE0\x9F\xBF"), 1);      // overlong
  EXPECT_EQ(FirstInvalidUtf8("a\xED\xA0\x80"), 1);      // surrogate
  EXPECT_EQ(FirstInvalidUtf8("a\xF4\x90\x80\x80"), 1);  // above U+10FFFF
  EXPECT_EQ(FirstInvalidUtf8("\x80"), 0);               // a continuation alone
}

TEST(Utf8, ReplacesMaximalSubparts) {
  // The example of the Unicode standard, table 3-8, for truncated sequences.
  EXPECT_EQ(ReplaceInvalidUtf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(ReplaceInvalidUtf8("\xC0\xAF"), "\uFFFD\uFFFD");
}

TEST(Utf8Assembler, HoldsBackUnfinishedCharacters) {
  Utf8Assembler assembler;
  EXPECT_EQ(assembler.Push("a\xF0\x9F"), "a");
  EXPECT_EQ(assembler.Push("\x98"), "");
  EXPECT_EQ(assembler.Push("\x80z"), "😀z");
  EXPECT_EQ(assembler.Push("\xE6"), "");
  EXPECT_EQ(assembler.Push("b"), "\uFFFDb");  // the character can no longer be finished
  EXPECT_EQ(assembler.Push("\xE6\xB0"), "");
  EXPECT_EQ(assembler.Flush(), "\uFFFD");
  EXPECT_EQ(assembler.Flush(), "");
}

TEST(Utf8Assembler, AnySplitGivesTheWholeTextReplaced) {
  Rng rng(1);
  for (int round = 0; round < 300; ++round) {
    std::string bytes;
    while (bytes.size() < 60) {
      switch (rng.Below(4)) {
        case 0:
          bytes += "é水😀";
          break;
        case 1:
          bytes += static_cast<char>(rng.Below(256));
          break;
        case 2:
          bytes += "\xF0\x9F";
          break;
        default:
          bytes += "word ";
      }
    }
    Utf8Assembler assembler;
    std::string out;
    for (size_t at = 0; at < bytes.size();) {
      const size_t n = 1 + rng.Below(5);
      out += assembler.Push(std::string_view{bytes}.substr(at, n));
      EXPECT_EQ(FirstInvalidUtf8(out), -1);
      at += n;
    }
    out += assembler.Flush();
    EXPECT_EQ(out, ReplaceInvalidUtf8(bytes));
  }
}

TEST(LoadDocuments, FilesAndFoldersInOrder) {
  const fs::path root = TemporaryFolder();
  Write(root / "z.txt", "last letter\r\nfirst given\r\n");
  Write(root / "docs/b.md", "\xEF\xBB\xBFwith a mark");
  Write(root / "docs/a/2.txt", "two");
  Write(root / "docs/a/10.txt", "ten");
  Write(root / "docs/.hidden/x.txt", "hidden folder");
  Write(root / "docs/.note", "hidden file");
  fs::create_directory_symlink(root, root / "docs/loop");
  fs::create_symlink(root / "z.txt", root / "docs/link.txt");

  const DocumentSet set =
      LoadDocuments({(root / "z.txt").string(), (root / "docs").string()}, /*strict=*/false);
  std::vector<std::string> ids;
  for (const Document& document : set.documents) {
    ids.push_back(fs::path(document.id).lexically_relative(root).string());
  }
  EXPECT_THAT(ids,
              ElementsAre("z.txt", "docs/a/10.txt", "docs/a/2.txt", "docs/b.md", "docs/link.txt"));
  EXPECT_EQ(set.documents[0].text, "last letter\r\nfirst given\r\n");  // bytes as they are
  EXPECT_EQ(set.documents[3].text, "with a mark");                     // but for the mark
  // What is not followed is named, and refused by `strict`.
  ASSERT_EQ(set.skipped.size(), 1u);
  EXPECT_EQ(set.skipped[0].path, (root / "docs/loop").string());
  EXPECT_EQ(set.skipped[0].reason, "a link to a folder");
  ExpectInputError([&] { LoadDocuments({(root / "docs").string()}, /*strict=*/true); },
                   "a link to a folder");
}

TEST(LoadDocuments, NamesWhatIsNotText) {
  const fs::path root = TemporaryFolder();
  Write(root / "1-binary", std::string("\x7F"
                                       "ELF\0\1",
                                       6));
  Write(root / "2-latin1", "caf\xE9 au lait");
  Write(root / "3-empty", "");
  Write(root / "4-mark-only", "\xEF\xBB\xBF");
  Write(root / "5-blank", " \r\n\t\n");
  Write(root / "6-utf16", std::string("\xFF\xFE"
                                      "a\0",
                                      4));
  Write(root / "7-good", "good");
  fs::create_symlink("nowhere", root / "8-broken");
  ASSERT_EQ(mkfifo((root / "9-pipe").c_str(), 0600), 0);

  const DocumentSet set = LoadDocuments({root.string()}, /*strict=*/false);
  ASSERT_EQ(set.documents.size(), 1u);
  EXPECT_EQ(set.documents[0].text, "good");
  std::vector<std::string> reasons;
  for (const SkippedFile& file : set.skipped) reasons.push_back(file.reason);
  EXPECT_THAT(reasons,
              ElementsAre("binary", "not UTF-8 text (byte 0xe9 at offset 3)", "empty", "empty",
                          "only white space", "UTF-16 text: convert it to UTF-8 first",
                          "cannot be read: No such file or directory", "not a regular file"));
  ExpectInputError([&] { LoadDocuments({root.string()}, true); }, "1-binary: binary");
}

TEST(LoadDocuments, MissingPathsThrowAndEmptyFoldersAreNamed) {
  ExpectInputError([] { LoadDocuments({"/no/such/place"}, false); },
                   "/no/such/place: no such file or folder");
  const std::string root = TemporaryFolder();
  const DocumentSet set = LoadDocuments({root}, false);
  ASSERT_EQ(set.skipped.size(), 1u);
  EXPECT_EQ(set.skipped[0].path, root);
  EXPECT_EQ(set.skipped[0].reason, "a folder without files");
}

TEST(LoadDocuments, UnreadableFilesAndFoldersAreNamed) {
  if (geteuid() == 0) GTEST_SKIP() << "root reads everything";
  const fs::path root = TemporaryFolder();
  Write(root / "file", "text");
  Write(root / "folder/file", "text");
  fs::permissions(root / "file", fs::perms::none);
  fs::permissions(root / "folder", fs::perms::none);
  const DocumentSet set = LoadDocuments({root.string()}, false);
  fs::permissions(root / "folder", fs::perms::owner_all);
  std::vector<std::string> reasons;
  for (const SkippedFile& file : set.skipped) reasons.push_back(file.reason);
  EXPECT_THAT(reasons, ElementsAre("the folder cannot be read: Permission denied",
                                   "cannot be read: Permission denied"));
}

TEST(LoadDocuments, FilesThatFailWhileBeingReadAreNamed) {
  // Opens, but its first byte cannot be read.
  const DocumentSet set = LoadDocuments({"/proc/self/mem"}, false);
  ASSERT_EQ(set.skipped.size(), 1u);
  EXPECT_EQ(set.skipped[0].reason, "cannot be read: Input/output error");
  ExpectInputError([] { LoadDocuments({"/proc/self/mem"}, true); }, "/proc/self/mem: cannot be");
}

TEST(ReadFile, ReturnsTheBytesOrTheError) {
  const fs::path root = TemporaryFolder();
  const std::string bytes(200000, '\xFF');
  Write(root / "file", bytes);
  std::string text = "old";
  EXPECT_EQ(ReadFile((root / "file").string(), &text), 0);
  EXPECT_EQ(text, bytes);
  EXPECT_EQ(ReadFile(root.string(), &text), EISDIR);
  EXPECT_EQ(ReadFile((root / "none").string(), &text), ENOENT);
}

TEST(Utf8, CheckNamesTextAndByte) {
  CheckUtf8("é", "the question");
  ExpectInputError([] { CheckUtf8("a\xFF", "the question"); },
                   "the question is not UTF-8 text (byte 0xff at offset 1)");
}

TEST(LoadDocuments, FileNamesThatAreNotUtf8GetPrintableIds) {
  const fs::path root = TemporaryFolder();
  Write(root / "caf\xE9.txt", "text");
  const DocumentSet set = LoadDocuments({root.string()}, true);
  ASSERT_EQ(set.documents.size(), 1u);
  EXPECT_TRUE(set.documents[0].id.ends_with("caf\uFFFD.txt")) << set.documents[0].id;
}

TEST(Tokenizer, BadFilesAreNamedWithTheReason) {
  const fs::path root = TemporaryFolder();
  ExpectInputError([] { Tokenizer::Load("/no/such.gguf"); },
                   "/no/such.gguf: cannot be read: No such file or directory");
  ExpectInputError([&] { Tokenizer::Load(root.string()); }, "a folder, not a GGUF file");
  Write(root / "text.gguf", "this is not a model at all");
  ExpectInputError([&] { Tokenizer::Load((root / "text.gguf").string()); }, "text.gguf: ");
  Write(root / "empty.gguf", "");
  ExpectInputError([&] { Tokenizer::Load((root / "empty.gguf").string()); }, "empty.gguf: ");
  Write(root / "cut.gguf", std::string("GGUF\3\0\0\0\1\0\0\0\0\0\0\0\7\0\0\0", 20));
  ExpectInputError([&] { Tokenizer::Load((root / "cut.gguf").string()); }, "cut.gguf: ");
}

TEST(Tokenizer, DefaultModel) {
  const Tokenizer* tokenizer = SharedTokenizer("default");
  if (tokenizer == nullptr) GTEST_SKIP() << "the default model is absent: run `make deps`";
  EXPECT_EQ(tokenizer->vocabulary(), 49152);
  EXPECT_TRUE(tokenizer->has_chat_template());
  EXPECT_EQ(tokenizer->bos_to_add(), -1);

  const std::vector<TokenId> plain = tokenizer->Encode("<|im_end|>", false, false);
  const std::vector<TokenId> special = tokenizer->Encode("<|im_end|>", false, true);
  EXPECT_GT(plain.size(), 1u);
  ASSERT_EQ(special.size(), 1u);
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(special[0]));
  EXPECT_EQ(tokenizer->Piece(special[0]), "");
  EXPECT_EQ(tokenizer->Piece(special[0], true), "<|im_end|>");
  EXPECT_EQ(tokenizer->Decode(plain), "<|im_end|>");
  EXPECT_THAT(tokenizer->Encode("", false, false), IsEmpty());

  const std::string chat = tokenizer->ApplyChatTemplate({{"system", "S"}, {"user", "U"}}, true);
  EXPECT_EQ(chat,
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST(Tokenizer, VocabulariesWithoutTemplateSaySo) {
  const Tokenizer* tokenizer = SharedTokenizer("llama-spm");
  if (tokenizer == nullptr) GTEST_SKIP() << "llama.cpp's vocabularies are absent";
  EXPECT_FALSE(tokenizer->has_chat_template());
  EXPECT_EQ(tokenizer->bos_to_add(), 1);
  const std::vector<TokenId> tokens = tokenizer->Encode("Hello", true, false);
  ASSERT_EQ(tokens.size(), 2u);
  EXPECT_EQ(tokens[0], 1);
  EXPECT_EQ(tokenizer->Decode(tokens), " Hello");
}

TEST(Tokenizer, BrokenTemplates) {
  if (SharedTokenizer("llama-bpe") == nullptr)
    GTEST_SKIP() << "llama.cpp's vocabularies are absent";
  ExpectInputError([] { SharedTokenizer("llama-bpe", "{% for %}"); }, "not valid Jinja");
  const Tokenizer* raises =
      SharedTokenizer("llama-bpe", "{{ raise_exception('only on Sundays') }}");
  ExpectInputError([&] { raises->ApplyChatTemplate({{"user", "U"}}, true); }, "only on Sundays");
  // llama.cpp goes through a template by recursion: deep ones are refused before.
  const std::string brackets = "{{" + std::string(1000, '(') + "1" + std::string(1000, ')') + "}}";
  ExpectInputError([&] { SharedTokenizer("llama-bpe", brackets); }, "levels deep");
  std::string blocks;
  for (int i = 0; i < 1000; ++i) blocks += "{%- if 1 %}";
  ExpectInputError([&] { SharedTokenizer("llama-bpe", blocks); }, "levels deep");
  ExpectInputError([] { SharedTokenizer("llama-bpe", std::string(1 << 20, 'x')); }, "bytes");
}

}  // namespace
}  // namespace winnow
