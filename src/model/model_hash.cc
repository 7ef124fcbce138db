#include "model/model_hash.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <vector>

#include "core/error.h"

namespace winnow {
namespace {

constexpr int64_t kHeadBytes = int64_t{16} << 20;
constexpr int64_t kBlocks = 1024;
constexpr int64_t kBlockBytes = int64_t{16} << 10;

class File {
 public:
  explicit File(const std::string& path)
      : path_(path), descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    struct stat status {};
    if (descriptor_ < 0 || fstat(descriptor_, &status) != 0) Fail();
    bytes_ = status.st_size;
  }
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int64_t bytes() const { return bytes_; }
  // At most `n` bytes from `offset` on; fewer only at the end of the file.
  std::span<const std::byte> Read(int64_t offset, int64_t n) {
    buffer_.resize(std::min(n, bytes_ - offset));
    for (size_t done = 0; done < buffer_.size();) {
      const ssize_t got = pread(descriptor_, buffer_.data() + done, buffer_.size() - done,
                                static_cast<off_t>(offset + static_cast<int64_t>(done)));
      if (got < 0 && errno == EINTR) continue;
      if (got == 0) errno = EIO;  // it was cut meanwhile
      if (got <= 0) Fail();
      done += static_cast<size_t>(got);
    }
    return buffer_;
  }

 private:
  [[noreturn]] void Fail() const {
    Throw(ErrorKind::kInput, "{}: cannot be read: {}", path_, std::strerror(errno));
  }

  std::string path_;
  int descriptor_;
  int64_t bytes_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace

Hash128 HashModelFile(const std::string& path) {
  File file(path);
  const int64_t length[] = {file.bytes()};
  Hash128 hash = HashBytes(file.Read(0, kHeadBytes), HashBytes(std::as_bytes(std::span(length))));
  const int64_t rest = file.bytes() - kHeadBytes;
  const int64_t stride = std::max(kBlockBytes, rest / kBlocks);
  for (int64_t offset = 0; offset < rest; offset += stride) {
    hash = HashBytes(file.Read(kHeadBytes + offset, kBlockBytes), hash);
  }
  return hash;
}

}  // namespace winnow
