// The user's cache folder: what can be made again, filed under what it was made from.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace winnow {

class UserCache {
 public:
  // $XDG_CACHE_HOME/winnow, or ~/.cache/winnow; without either nothing is kept.
  UserCache();

  // "" without a folder.
  std::filesystem::path PathOf(const std::string& name) const;
  // Nothing if there is no such file, or it cannot be read.
  std::optional<std::string> Read(const std::string& name) const;
  // Replaces the file as a whole. False if it cannot be written.
  bool Write(const std::string& name, const std::string& text) const;

 private:
  std::filesystem::path root_;
};

// Writes `text` to a new file beside `path`, then renames it: a reader sees the old file or the new
// one. False if it cannot.
bool ReplaceFile(const std::filesystem::path& path, const std::string& text);

}  // namespace winnow
