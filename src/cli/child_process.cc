#include "cli/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <stdexcept>

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it to the program

namespace winnow::testing {
namespace {

struct Pipe {
  int read_end = -1;
  int write_end = -1;
};

Pipe MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  return {ends[0], ends[1]};
}

// A pseudo-terminal: what is written to its slave is read from its master.
Pipe MakeTerminal() {
  const int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) {
    throw std::runtime_error("no pseudo-terminal");
  }
  std::array<char, 128> name{};
  if (ptsname_r(master, name.data(), name.size()) != 0) throw std::runtime_error("no slave");
  const int slave = open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (slave < 0) throw std::runtime_error("cannot open the slave");
  return {master, slave};
}

void CloseEnd(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& args, ErrorStream error_stream,
                           const char* output) {
  std::signal(SIGPIPE, SIG_IGN);  // a child that ends early closes its stdin
  const Pipe in = MakePipe();
  const Pipe out = MakePipe();
  Pipe err;
  if (error_stream == ErrorStream::kPipe) err = MakePipe();
  if (error_stream == ErrorStream::kTerminal) err = MakeTerminal();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.read_end, STDIN_FILENO);
  if (output != nullptr) {
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output, O_WRONLY, 0);
  } else {
    posix_spawn_file_actions_adddup2(&actions, out.write_end, STDOUT_FILENO);
  }
  if (error_stream == ErrorStream::kClosed) {
    posix_spawn_file_actions_addclose(&actions, STDERR_FILENO);
  } else {
    const bool joined = error_stream == ErrorStream::kOutput;
    posix_spawn_file_actions_adddup2(&actions, joined ? out.write_end : err.write_end,
                                     STDERR_FILENO);
  }
  std::string binary = WINNOW_BINARY;
  std::vector<std::string> copies = args;
  std::vector<char*> argv = {binary.data()};
  for (std::string& arg : copies) argv.push_back(arg.data());
  argv.push_back(nullptr);
  const int error = posix_spawn(&pid_, binary.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(in.read_end);
  close(out.write_end);
  CloseEnd(err.write_end);
  in_ = in.write_end;
  out_ = out.read_end;
  err_ = err.read_end;
  if (error != 0) throw std::runtime_error("cannot start " + binary);
}

ChildProcess::~ChildProcess() {
  CloseEnd(in_);
  CloseEnd(out_);
  CloseEnd(err_);
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
}

void ChildProcess::WriteInput(const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(in_, text.data() + done, text.size() - done);
    if (n <= 0) return;
    done += static_cast<size_t>(n);
  }
}

void ChildProcess::CloseInput() { CloseEnd(in_); }
void ChildProcess::CloseOutput() { CloseEnd(out_); }
void ChildProcess::Signal(int signal) { kill(pid_, signal); }

bool ChildProcess::Pump() {
  std::array<pollfd, 2> fds = {{{out_, POLLIN, 0}, {err_, POLLIN, 0}}};
  if (out_ < 0 && err_ < 0) return false;
  if (poll(fds.data(), fds.size(), -1) < 0) return errno == EINTR;
  const auto drain = [](const pollfd& state, int& fd, std::string& text) {
    if (fd < 0 || state.revents == 0) return;
    std::array<char, 4096> buffer;
    const ssize_t n = read(fd, buffer.data(), buffer.size());
    // A terminal whose last writer is gone reports an error instead of an end.
    if (n <= 0) return CloseEnd(fd);
    text.append(buffer.data(), static_cast<size_t>(n));
  };
  drain(fds[0], out_, finished_.out);
  drain(fds[1], err_, finished_.err);
  return true;
}

bool ChildProcess::WaitForError(const std::string& text) {
  while (finished_.err.find(text) == std::string::npos) {
    if (err_ < 0 || !Pump()) return false;
  }
  return true;
}

bool ChildProcess::WaitForOutput(size_t n) {
  while (finished_.out.size() < n) {
    if (out_ < 0 || !Pump()) return false;
  }
  return true;
}

Finished ChildProcess::Finish() {
  CloseInput();
  while (Pump()) {
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  finished_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return finished_;
}

Finished RunWinnow(const std::vector<std::string>& args, const std::string& input) {
  ChildProcess child(args);
  child.WriteInput(input);
  return child.Finish();
}

}  // namespace winnow::testing
