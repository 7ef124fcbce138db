// Byte counts in words, for tables and messages.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace winnow {

// "156 MiB", "1.2 GiB": powers of 1024.
std::string FormatBytes(int64_t bytes);

// Two counts that a message sets against each other: as FormatBytes gives them, with more digits
// where they would read alike without being equal, to the single byte if need be.
std::pair<std::string, std::string> FormatBytesApart(int64_t a, int64_t b);

}  // namespace winnow
