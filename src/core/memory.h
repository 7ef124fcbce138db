// What the process and the machine have of memory.
#pragma once

#include <cstddef>

namespace winnow {

// Highest resident set of this process so far, in bytes (0 where the system does not tell).
size_t PeakRssBytes();

// Resident set of this process now, in bytes.
size_t CurrentRssBytes();

// Memory the system could still give this process, in bytes: the smaller of what the kernel calls
// available and what is left under the process's cgroup limit.
size_t AvailableMemoryBytes();

// Asks for huge pages behind [data, data + bytes) before it is first touched: reading all of it
// translates fewer addresses. Advice only: where the system has none, nothing changes.
void PreferHugePages(void* data, size_t bytes);

}  // namespace winnow
