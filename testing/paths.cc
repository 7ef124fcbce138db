#include "testing/paths.h"

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace winnow::testing {
namespace fs = std::filesystem;
namespace {

std::optional<std::string> IfExists(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  return path.string();
}

// Removes the folders made by this process when it ends.
struct Folders {
  std::vector<fs::path> paths;
  ~Folders() {
    for (const fs::path& path : paths) {
      std::error_code ignored;
      fs::remove_all(path, ignored);
    }
  }
};

}  // namespace

std::optional<std::string> DefaultModelPath() {
  return IfExists(fs::path(WINNOW_SOURCE_DIR) / ".deps/models/SmolLM2-135M-Instruct.Q4_1.gguf");
}

std::optional<std::string> SharedDataPath(const std::string& name) {
  return IfExists(fs::path(WINNOW_SOURCE_DIR) / "../shared/data" / name);
}

std::string TemporaryFolder() {
  static Folders folders;
  std::string pattern = (fs::temp_directory_path() / "winnow-test-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make " + pattern);
  folders.paths.emplace_back(pattern);
  return pattern;
}

}  // namespace winnow::testing
