#include "eval/scoring.h"

#include <algorithm>

#include "core/check.h"

namespace winnow {
namespace {

std::string Lowered(std::string_view text) {
  std::string lowered(text);
  for (char& c : lowered) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (static_cast<unsigned char>(c) < 0x20) c = '\n';
  }
  return lowered;
}

std::string_view Stripped(std::string_view text) {
  constexpr std::string_view kWhiteSpace = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(kWhiteSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhiteSpace) - begin + 1);
}

}  // namespace

double ScoreAnswer(std::string_view answer, const std::vector<std::string>& references,
                   Match match) {
  WINNOW_CHECK(!references.empty());
  const std::string text = Lowered(Stripped(answer));
  const auto found = std::count_if(
      references.begin(), references.end(),
      [&](const std::string& reference) { return text.find(Lowered(reference)) != text.npos; });
  if (match == Match::kPart) return found > 0 ? 1 : 0;
  return static_cast<double>(found) / static_cast<double>(references.size());
}

}  // namespace winnow
