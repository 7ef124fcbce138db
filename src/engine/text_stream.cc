#include "engine/text_stream.h"

#include <algorithm>
#include <utility>

namespace winnow {

TextStream::TextStream(std::vector<std::string> stop) : stop_(std::move(stop)) {
  std::erase(stop_, "");
}

std::string TextStream::Push(std::string_view bytes) {
  if (stopped_) return "";
  held_ += assembler_.Push(bytes);
  return Release(/*all=*/false);
}

std::string TextStream::Finish() {
  if (stopped_) return "";
  held_ += assembler_.Flush();
  return Release(/*all=*/true);
}

std::string TextStream::Release(bool all) {
  size_t n = held_.size();
  for (const std::string& stop : stop_) {
    if (const size_t found = held_.find(stop); found != std::string::npos) {
      stopped_ = true;
      n = std::min(n, found);
    }
  }
  if (!stopped_ && !all) {
    // Keep the longest end of the text that begins some stop string.
    for (const std::string& stop : stop_) {
      for (size_t length = std::min(stop.size() - 1, held_.size()); length > 0; --length) {
        const std::string_view beginning(stop.data(), length);
        if (held_.ends_with(beginning)) {
          n = std::min(n, held_.size() - length);
          break;
        }
      }
    }
  }
  std::string out = held_.substr(0, n);
  held_.erase(0, n);
  if (stopped_) held_.clear();
  text_ += out;
  return out;
}

}  // namespace winnow
