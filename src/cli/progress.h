// What shows progress on a terminal's stderr: the bar of a long prefill, and a line that changes.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "engine/request.h"

namespace winnow {

class ProgressBar {
 public:
  // `enabled` false, or stderr not a terminal: nothing is ever drawn.
  explicit ProgressBar(bool enabled);
  ~ProgressBar() { Clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Draws at most ten times a second, and not at all in the first half second: short prompts stay
  // quiet.
  void Update(const PrefillProgress& progress);
  // Wipes the bar off the line.
  void Clear();

 private:
  bool enabled_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_{};
};

// Draws nothing where `enabled` is false or stderr is no terminal; wiped in the end.
class ChangingLine {
 public:
  explicit ChangingLine(bool enabled);
  ~ChangingLine() { Show(""); }
  ChangingLine(const ChangingLine&) = delete;
  ChangingLine& operator=(const ChangingLine&) = delete;

  void Show(std::string_view text) const;

 private:
  bool enabled_;
};

// "reading [#####     ]  51 %  3,412 of 6,812 tokens, 812 tokens/s, 4 s left"
std::string FormatProgress(const PrefillProgress& progress);

}  // namespace winnow
