// What the tests of the whole program share: files to feed it, tiny models, and the fixture of
// tests that need a model which answers.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/child_process.h"
#include "testing/paths.h"
#include "testing/tiny_gguf.h"

namespace winnow::testing {

// The cache folder of every child: a test neither believes nor changes what the user's holds.
inline const std::string kCacheHome = [] {
  std::string folder = TemporaryFolder();
  setenv("XDG_CACHE_HOME", folder.c_str(), /*overwrite=*/1);
  return folder;
}();

// Writes a file into a folder of this process, and returns its path.
inline std::string WriteFile(const std::string& name, const std::string& content) {
  static const std::string kFolder = TemporaryFolder();
  const std::filesystem::path path = std::filesystem::path(kFolder) / name;
  std::ofstream(path, std::ios::binary) << content;
  return path.string();
}

inline std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::string TinyModel(const std::string& name, const TinyGguf& options) {
  std::string path = WriteFile(name, "");
  WriteTinyGguf(path, options);
  return path;
}

// About `n` words of plain English, no two sentences alike.
inline std::string Prose(int n) {
  constexpr const char* kWords[] = {"the",   "river", "carries", "old",  "letters",
                                    "under", "seven", "bridges", "each", "winter"};
  std::string text;
  for (int i = 0; i < n; ++i) {
    text += kWords[(i * 7 + i / 10) % 10];
    text += i % 12 == 11 ? ". " : " ";
  }
  return text;
}

// The objects of output that holds one a line.
inline std::vector<nlohmann::json> JsonLines(const std::string& text) {
  std::vector<nlohmann::json> objects;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) objects.push_back(nlohmann::json::parse(line));
  return objects;
}

inline void ExpectUsageError(const Finished& result, const std::string& message) {
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, ::testing::HasSubstr(message));
  EXPECT_THAT(result.out, ::testing::IsEmpty());
}

class WithModel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!DefaultModelPath().has_value()) GTEST_SKIP() << "the default model is absent";
  }

  static std::vector<std::string> Args(const std::string& command,
                                       std::vector<std::string> more = {}) {
    std::vector<std::string> args = {command, "-m", *DefaultModelPath()};
    // One thread: these tests measure nothing, and threads that wait for each other suffer most on
    // a busy machine.
    if (command != "inspect") args.insert(args.end(), {"-t", "1"});
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  static Finished Run(const std::vector<std::string>& more, const std::string& input = "") {
    return RunWinnow(Args("run", more), input);
  }
};

}  // namespace winnow::testing
