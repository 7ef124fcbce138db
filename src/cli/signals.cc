#include "cli/signals.h"

#include <unistd.h>

#include <csignal>

namespace winnow {
namespace {

// Written by the handler: lock-free types only.
volatile std::sig_atomic_t g_scopes = 0;
volatile std::sig_atomic_t g_pending = 0;

extern "C" void HandleSignal(int signal) {
  // _exit, not exit: destructors are not safe here, and threads of the pool may be running.
  if (g_scopes == 0 || g_pending != 0) _exit(128 + signal);
  g_pending = signal;
}

}  // namespace

void InstallSignalHandlers() {
  struct sigaction action {};
  action.sa_handler = HandleSignal;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction before {};
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

InterruptScope::InterruptScope() { g_scopes = g_scopes + 1; }

InterruptScope::~InterruptScope() {
  g_scopes = g_scopes - 1;
  if (g_scopes == 0) g_pending = 0;
}

int InterruptScope::Pending() const { return g_pending; }
void InterruptScope::Clear() { g_pending = 0; }

}  // namespace winnow
