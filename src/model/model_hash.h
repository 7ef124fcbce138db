// Which model a file holds, told by its contents: what profiles and measurements are filed under.
#pragma once

#include <string>

#include "core/hash.h"

namespace winnow {

// Hash of the file's length, its first 16 MiB (in a GGUF file the metadata, the tokenizer and the
// first weights) and 1,024 blocks of 16 KiB evenly spread over the rest: a file of any size takes
// milliseconds, and two trainings of one model differ in nearly every block. It does not protect
// from somebody who wants two files to look alike. Throws Error(kInput) if the file cannot be read.
Hash128 HashModelFile(const std::string& path);

}  // namespace winnow
