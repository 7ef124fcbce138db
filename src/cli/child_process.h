// For tests of the program as a whole: starts build/bin/winnow, feeds it, signals it, reads what it
// says.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace winnow::testing {

struct Finished {
  int exit_code = -1;  // -signal if a signal ended it
  std::string out;
  std::string err;
};

// Where a child's stderr goes.
enum class ErrorStream {
  kPipe,
  kTerminal,
  kClosed,  // as after 2>&-
  kOutput,  // the pipe of stdout, as after 2>&1
};

class ChildProcess {
 public:
  // Starts `winnow args...` with stdin and stdout on pipes, or stdout on the file `output`. Throws
  // std::runtime_error if it cannot be started.
  explicit ChildProcess(const std::vector<std::string>& args,
                        ErrorStream error_stream = ErrorStream::kPipe,
                        const char* output = nullptr);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void WriteInput(const std::string& text);
  void CloseInput();
  // Reads on until `text` has appeared on stderr, resp. `n` bytes on stdout. False if the stream
  // ended first.
  bool WaitForError(const std::string& text);
  bool WaitForOutput(size_t n);
  void CloseOutput();  // the reader goes away
  void Signal(int signal);
  // Closes the input, reads to the end and waits.
  Finished Finish();

 private:
  // Reads what is there, or waits for some. False once both streams have ended.
  bool Pump();

  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  int err_ = -1;
  Finished finished_;
};

// Starts, feeds `input`, and waits.
Finished RunWinnow(const std::vector<std::string>& args, const std::string& input = "");

}  // namespace winnow::testing
