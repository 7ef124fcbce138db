#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "cli/output.h"

namespace winnow {
namespace {

constexpr int kBarWidth = 24;
constexpr double kQuietSeconds = 0.5;
constexpr std::chrono::milliseconds kInterval{100};

}  // namespace

ProgressBar::ProgressBar(bool enabled) : enabled_(enabled && isatty(STDERR_FILENO) == 1) {}

void ProgressBar::Update(const PrefillProgress& progress) {
  if (!enabled_ || progress.seconds < kQuietSeconds) return;
  const auto now = std::chrono::steady_clock::now();
  if (drawn_ && now - last_ < kInterval) return;
  last_ = now;
  drawn_ = true;
  WriteError(fmt::format("\r{}\x1b[K", FormatProgress(progress)));
}

void ProgressBar::Clear() {
  if (!drawn_) return;
  drawn_ = false;
  WriteError("\r\x1b[K");
}

ChangingLine::ChangingLine(bool enabled) : enabled_(enabled && isatty(STDERR_FILENO) == 1) {}

void ChangingLine::Show(std::string_view text) const {
  if (enabled_) WriteError(fmt::format("\r\x1b[K{}", text));
}

std::string FormatProgress(const PrefillProgress& progress) {
  const int64_t total = std::max<int64_t>(progress.tokens_total, 1);
  const double share = std::clamp(static_cast<double>(progress.tokens_done) / total, 0.0, 1.0);
  const int filled = static_cast<int>(share * kBarWidth);
  std::string line =
      fmt::format("reading [{}{}] {:3.0f} %  {} of {} tokens", std::string(filled, '#'),
                  std::string(kBarWidth - filled, ' '), 100 * share,
                  FormatCount(progress.tokens_done), FormatCount(progress.tokens_total));
  if (progress.tokens_done > 0 && progress.seconds > 0) {
    const double rate = static_cast<double>(progress.tokens_done) / progress.seconds;
    line += fmt::format(", {:.0f} tokens/s, {:.0f} s left", rate,
                        static_cast<double>(progress.tokens_total - progress.tokens_done) / rate);
  }
  return line;
}

}  // namespace winnow
