// Documents from files and folders: what can be read as UTF-8 text, and why the rest cannot.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace winnow {

struct Document {
  // The path as the user wrote it (below a folder: folder/relative/path); bytes of a file name that
  // are not UTF-8 become U+FFFD.
  std::string id;
  std::string text;  // valid UTF-8, no byte-order mark
};

struct SkippedFile {
  std::string path;
  // "not UTF-8 text (byte 0xff at offset 17)", "binary", "empty", "cannot be read: …"
  std::string reason;
};

struct DocumentSet {
  std::vector<Document> documents;  // in the order given; folders in path order
  std::vector<SkippedFile> skipped;
};

// Reads files and, recursively, folders (hidden entries left out; links to folders are named in
// `skipped`). A path that does not exist throws Error(kInput). Files that are not text are listed
// in `skipped`, or throw Error(kInput) if `strict`.
DocumentSet LoadDocuments(const std::vector<std::string>& paths, bool strict);

// Offset of the first byte that is not valid UTF-8, or -1.
int64_t FirstInvalidUtf8(std::string_view text);

}  // namespace winnow
