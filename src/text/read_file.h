// Reads whole files, and says why one cannot be read.
#pragma once

#include <string>
#include <string_view>

namespace winnow {

// Replaces `bytes` by the whole file at `path`, or by standard input for "-". Returns 0, or the
// errno of what failed; EFBIG beyond 1 GiB, more than can be tokenised at once (and an end to
// devices that have none).
int ReadFile(const std::string& path, std::string* bytes);

// `text` without the byte-order mark that some editors put before UTF-8 text; it says nothing.
std::string_view WithoutByteOrderMark(std::string_view text);

}  // namespace winnow
