#include "cli/user_cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "text/read_file.h"

namespace winnow {
namespace fs = std::filesystem;

UserCache::UserCache() {
  // The specification has relative paths ignored.
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') {
    root_ = fs::path(cache) / "winnow";
  } else if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') {
    root_ = fs::path(home) / ".cache/winnow";
  }
}

fs::path UserCache::PathOf(const std::string& name) const {
  return root_.empty() ? fs::path() : root_ / name;
}

std::optional<std::string> UserCache::Read(const std::string& name) const {
  std::string text;
  if (root_.empty() || ReadFile(PathOf(name).string(), &text) != 0) return std::nullopt;
  return text;
}

bool UserCache::Write(const std::string& name, const std::string& text) const {
  if (root_.empty()) return false;
  const fs::path path = PathOf(name);
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  return !error && ReplaceFile(path, text);
}

bool ReplaceFile(const fs::path& path, const std::string& text) {
  const fs::path fresh = path.string() + fmt::format(".{}", getpid());
  bool written = false;
  {
    std::ofstream stream(fresh, std::ios::binary);
    stream << text << std::flush;
    written = static_cast<bool>(stream);
  }
  std::error_code error;
  if (written) fs::rename(fresh, path, error);
  if (written && !error) return true;
  fs::remove(fresh, error);
  return false;
}

}  // namespace winnow
