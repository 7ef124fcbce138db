// Ctrl-C, SIGTERM and SIGHUP as a flag that commands poll while they generate; elsewhere they end
// the process.
#pragma once

namespace winnow {

// Installs the handlers and ignores SIGPIPE: a closed pipe shows as a failed write. Until an
// InterruptScope exists, SIGINT, SIGTERM and SIGHUP end the process with exit code 128 + signal. A
// SIGHUP that was ignored when the program started (nohup) stays ignored.
void InstallSignalHandlers();

// While one exists, the first of these signals is only noted for `Pending`; a second one ends the
// process with 128 + signal. The handlers do not restart system calls, so a blocked read returns
// EINTR.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  // The signal if one came since the scope began or since Clear; else 0.
  int Pending() const;
  void Clear();
};

}  // namespace winnow
