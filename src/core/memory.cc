#include "core/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

namespace winnow {
namespace {

// The value of a one-number file such as memory.max; a missing file or "max" is no limit.
size_t ReadLimit(const char* path) {
  std::ifstream in(path);
  uint64_t value = 0;
  return (in >> value) ? value : std::numeric_limits<size_t>::max();
}

}  // namespace

size_t PeakRssBytes() {
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
#ifdef __APPLE__
  return static_cast<size_t>(usage.ru_maxrss);
#else
  return static_cast<size_t>(usage.ru_maxrss) * 1024;
#endif
}

size_t CurrentRssBytes() {
  std::ifstream in("/proc/self/statm");
  size_t total_pages = 0;
  size_t resident_pages = 0;
  if (!(in >> total_pages >> resident_pages)) return 0;
  return resident_pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

size_t AvailableMemoryBytes() {
  size_t available = std::numeric_limits<size_t>::max();
  std::ifstream in("/proc/meminfo");
  for (std::string key; in >> key;) {
    size_t kib = 0;
    if (key == "MemAvailable:" && in >> kib) {
      available = kib * 1024;
      break;
    }
    in.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  const size_t limit = ReadLimit("/sys/fs/cgroup/memory.max");
  const size_t used = ReadLimit("/sys/fs/cgroup/memory.current");
  if (limit != std::numeric_limits<size_t>::max() && used <= limit) {
    available = std::min(available, limit - used);
  }
  return available;
}

}  // namespace winnow
