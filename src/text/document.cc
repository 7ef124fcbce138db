#include "text/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "text/read_file.h"
#include "text/utf8.h"

namespace winnow {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kWhiteSpace = " \t\r\n\v\f";

// Why `bytes` cannot serve as a document, or nothing if they can.
std::optional<std::string> WhyNotText(std::string_view bytes) {
  if (bytes.starts_with("\xFF\xFE") || bytes.starts_with("\xFE\xFF")) {
    return "UTF-16 text: convert it to UTF-8 first";
  }
  if (bytes.find('\0') != std::string_view::npos) return "binary";
  if (const int64_t offset = FirstInvalidUtf8(bytes); offset >= 0) {
    return fmt::format("not UTF-8 text (byte 0x{:02x} at offset {})",
                       static_cast<unsigned char>(bytes[offset]), offset);
  }
  bytes = WithoutByteOrderMark(bytes);
  if (bytes.empty()) return "empty";
  if (bytes.find_first_not_of(kWhiteSpace) == std::string_view::npos) return "only white space";
  return std::nullopt;
}

class Loader {
 public:
  explicit Loader(bool strict) : strict_(strict) {}

  void Add(const std::string& path) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (status.type() == fs::file_type::not_found) {
      Throw(ErrorKind::kInput, "{}: no such file or folder", path);
    }
    if (status.type() == fs::file_type::none) {
      Throw(ErrorKind::kInput, "{}: cannot be read: {}", path, error.message());
    }
    if (status.type() == fs::file_type::directory) {
      AddFolder(path);
    } else {
      AddFile(path);  // also a pipe such as <(pdftotext report.pdf -)
    }
  }

  DocumentSet Take() && { return std::move(set_); }

 private:
  void Skip(const std::string& path, const std::string& reason) {
    const std::string name = ReplaceInvalidUtf8(path);
    if (strict_) Throw(ErrorKind::kInput, "{}: {}", name, reason);
    set_.skipped.push_back({name, reason});
  }

  void AddFile(const std::string& path) {
    std::string bytes;
    if (const int error = ReadFile(path, &bytes); error != 0) {
      return Skip(path, fmt::format("cannot be read: {}", std::strerror(error)));
    }
    if (const auto reason = WhyNotText(bytes)) return Skip(path, *reason);
    bytes.erase(0, bytes.size() - WithoutByteOrderMark(bytes).size());
    set_.documents.push_back({ReplaceInvalidUtf8(path), std::move(bytes)});
  }

  void AddFolder(const std::string& folder) {
    std::vector<std::string> files;
    ListFolder(folder, &files);
    if (files.empty()) Skip(folder, "a folder without files");
    std::sort(files.begin(), files.end());
    for (const std::string& file : files) {
      std::error_code error;
      const fs::file_status status = fs::status(file, error);
      if (error) {
        Skip(file, fmt::format("cannot be read: {}", error.message()));
      } else if (fs::is_directory(status)) {
        Skip(file, "a link to a folder");  // which may lead back here
      } else if (!fs::is_regular_file(status)) {
        Skip(file, "not a regular file");  // reading a pipe or a device could wait for ever
      } else {
        AddFile(file);
      }
    }
  }

  // Everything below `folder` but folders and hidden entries, in no order.
  void ListFolder(const fs::path& folder, std::vector<std::string>* files) {
    std::error_code error;
    fs::directory_iterator entry(folder, error);
    while (!error && entry != fs::directory_iterator()) {
      std::error_code unreadable;  // AddFolder reports it
      if (!entry->path().filename().string().starts_with('.')) {
        if (entry->is_directory(unreadable) && !entry->is_symlink(unreadable)) {
          ListFolder(entry->path(), files);
        } else {
          files->push_back(entry->path().string());
        }
      }
      entry.increment(error);
    }
    if (error) {
      Skip(folder.string(), fmt::format("the folder cannot be read: {}", error.message()));
    }
  }

  bool strict_;
  DocumentSet set_;
};

}  // namespace

DocumentSet LoadDocuments(const std::vector<std::string>& paths, bool strict) {
  Loader loader(strict);
  for (const std::string& path : paths) loader.Add(path);
  return std::move(loader).Take();
}

}  // namespace winnow
