#include "core/memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

namespace winnow {
namespace {

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

// The value of a one-number file such as memory.max; a missing file or "max" is no limit.
size_t ReadLimit(const std::string& path) {
  std::ifstream in(path);
  uint64_t value = 0;
  return (in >> value) ? value : kNoLimit;
}

// The value after `key` in a file of "key value" lines; 0 if there is none.
size_t ReadKey(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  for (std::string name; in >> name;) {
    uint64_t value = 0;
    if (name == key && in >> value) return value;
    in.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

// What the process's control group (version 2) and those above it leave, in bytes.
size_t CgroupAvailable() {
  std::ifstream in("/proc/self/cgroup");
  std::string line;
  std::string group;
  while (std::getline(in, line)) {
    if (line.starts_with("0::")) group = line.substr(3);
  }
  size_t available = kNoLimit;
  while (true) {
    const std::string folder = "/sys/fs/cgroup" + group;
    const size_t limit = ReadLimit(folder + "/memory.max");
    const size_t used = ReadLimit(folder + "/memory.current");
    if (limit != kNoLimit && used != kNoLimit) {
      // File pages that nobody uses are given back under pressure.
      const size_t in_use =
          used - std::min(used, ReadKey(folder + "/memory.stat", "inactive_file"));
      available = std::min(available, limit - std::min(limit, in_use));
    }
    if (group.empty()) return available;
    group.erase(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
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
  size_t available = ReadKey("/proc/meminfo", "MemAvailable:") * 1024;
  if (available == 0) {
    available =
        static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  }
  return std::min(available, CgroupAvailable());
}

void PreferHugePages([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#ifdef MADV_HUGEPAGE
  // The call takes whole pages: those that lie inside.
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t before = (page - reinterpret_cast<uintptr_t>(data) % page) % page;
  if (bytes < before + page) return;
  (void)madvise(static_cast<char*>(data) + before, (bytes - before) / page * page, MADV_HUGEPAGE);
#endif
}

}  // namespace winnow
