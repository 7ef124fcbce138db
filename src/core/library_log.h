// Where the messages of ggml and llama.cpp go: nowhere, since a library does not print, unless the
// program asks to see them or somebody collects them to explain a failure.
#pragma once

#include <string>

namespace winnow {

// Takes over the logs of ggml and llama.cpp for the whole process; later calls do nothing. Whoever
// loads a file calls it first.
void TakeLibraryLog();

// Passes every message to `sink` (null: no more) beside what LogCapture does.
void ForwardLibraryLog(void (*sink)(const char* text));

// Collects the warnings and errors that this thread causes while the object lives. Captures nest:
// the inner one collects.
class LogCapture {
 public:
  LogCapture();
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  // On one line, cut after about 2,000 bytes; "" if there was nothing.
  std::string Line() const;
  // The first error, without the function name that llama.cpp puts in front.
  std::string FirstError() const;

 private:
  friend struct LibraryLog;
  std::string all_;
  std::string errors_;
  LogCapture* outer_;
};

// The version of the ggml that this program was built with.
std::string GgmlVersion();

}  // namespace winnow
