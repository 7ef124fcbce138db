#include "cli/result_folder.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/error.h"

namespace winnow {
namespace fs = std::filesystem;

void MakeResultFolder(const std::string& path, const std::string& name, const std::string& what) {
  if (path.empty()) return;
  const fs::path file = fs::path(path) / name;
  std::error_code error;
  if (fs::exists(file, error)) {
    Throw(ErrorKind::kUsage,
          "{} exists: --out wants a folder that holds no {} yet, so that none is lost",
          file.string(), what);
  }
  fs::create_directories(path, error);
  if (error) Throw(ErrorKind::kResource, "cannot make the folder {}: {}", path, error.message());
}

void WriteResultFile(const std::string& folder, const std::string& name, const std::string& text) {
  const fs::path path = fs::path(folder) / name;
  errno = 0;
  std::ofstream stream(path, std::ios::binary);
  stream << text << std::flush;
  if (stream) return;
  Throw(ErrorKind::kResource, "cannot write {}: {}", path.string(),
        errno == 0 ? "unknown cause" : std::strerror(errno));
}

}  // namespace winnow
