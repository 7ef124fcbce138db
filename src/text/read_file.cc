#include "text/read_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <vector>

namespace winnow {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;
constexpr size_t kBlock = size_t{1} << 16;

int ReadAll(int descriptor, std::string* bytes) {
  std::vector<char> block(kBlock);
  for (;;) {
    const ssize_t n = ::read(descriptor, block.data(), block.size());
    if (n == 0) return 0;
    if (n < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    if (bytes->size() + static_cast<size_t>(n) > kMaxBytes) return EFBIG;
    bytes->append(block.data(), static_cast<size_t>(n));
  }
}

}  // namespace

int ReadFile(const std::string& path, std::string* bytes) {
  bytes->clear();
  if (path == "-") return ReadAll(STDIN_FILENO, bytes);
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) return errno;
  const int error = ReadAll(descriptor, bytes);
  ::close(descriptor);
  return error;
}

std::string_view WithoutByteOrderMark(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (text.starts_with(kMark)) text.remove_prefix(kMark.size());
  return text;
}

}  // namespace winnow
