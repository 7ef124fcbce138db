#include "core/library_log.h"

#include <ggml.h>
#include <llama.h>

#include <algorithm>
#include <atomic>
#include <mutex>

namespace winnow {
namespace {

constexpr size_t kMaxCapture = 2000;  // a broken file can make ggml say the same thing many times
thread_local LogCapture* innermost = nullptr;
std::atomic<void (*)(const char*)> forward = nullptr;

}  // namespace

struct LibraryLog {
  static void Receive(ggml_log_level level, const char* text, void* /*user_data*/) {
    if (auto* sink = forward.load()) sink(text);
    if (innermost == nullptr || innermost->all_.size() > kMaxCapture) return;
    if (level >= GGML_LOG_LEVEL_WARN) innermost->all_ += text;
    if (level == GGML_LOG_LEVEL_ERROR) innermost->errors_ += text;
  }
};

void TakeLibraryLog() {
  static std::once_flag once;
  std::call_once(once, [] { llama_log_set(LibraryLog::Receive, nullptr); });
}

void ForwardLibraryLog(void (*sink)(const char* text)) {
  TakeLibraryLog();
  forward = sink;
}

LogCapture::LogCapture() : outer_(innermost) {
  TakeLibraryLog();
  innermost = this;
}

LogCapture::~LogCapture() { innermost = outer_; }

std::string LogCapture::Line() const {
  std::string line = all_;
  while (!line.empty() && line.back() == '\n') line.pop_back();
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

std::string LogCapture::FirstError() const {
  std::string line = errors_.substr(0, errors_.find('\n'));
  const size_t name_end = line.find(": ");
  if (name_end != std::string::npos && line.find(' ') > name_end) line.erase(0, name_end + 2);
  return line;
}

std::string GgmlVersion() { return ggml_version(); }

}  // namespace winnow
