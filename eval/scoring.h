// Scores of an answer by the references that it contains, as RULER scores.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace winnow {

enum class Match : uint8_t {
  kAll,   // the share of the references that the answer contains (string_match_all)
  kPart,  // 1 if it contains any of them (string_match_part)
};

// In [0, 1]. Control characters of the answer count as line ends, ASCII letters match in either
// case, white space around the answer does not count. There must be a reference.
double ScoreAnswer(std::string_view answer, const std::vector<std::string>& references,
                   Match match);

}  // namespace winnow
