#include "launcher/events/signal_reader.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "common/text.h"
#include "launcher/process/control_signal.h"
#include "roundpipe/error.h"

namespace rp {

namespace {
volatile std::sig_atomic_t g_has_early_signal = 0;
}  // namespace

void keep_early_signals() {
  signal(SIGUSR1, [](int) { g_has_early_signal = 1; });
}

sigset_t SignalReader::handled() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGCONT, add_worker_signal()}) sigaddset(&set, number);
  for (const int number : {SIGHUP, SIGTSTP}) {
    struct sigaction present {};
    sigaction(number, nullptr, &present);
    if (present.sa_handler != SIG_IGN)
      sigaddset(&set, number);  // ignored under nohup, or by a shell without job control
  }
  return set;
}

SignalReader::SignalReader() {
  const sigset_t set = handled();
  fd_ = UniqueFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (fd_ && g_has_early_signal != 0) kill(getpid(), SIGUSR1);
  if (fd_) return;  // otherwise the signals are blocked, so nothing could end the run
  throw Error(ExitCode::kNoResource,
              cat("cannot receive signals (", errno_text(errno), "); raise the limit on open files (ulimit -n)"));
}

// NOLINTNEXTLINE(readability-make-member-function-const): removes the signal from the descriptor.
std::optional<signalfd_siginfo> SignalReader::next() {
  signalfd_siginfo signal{};
  if (read(fd(), &signal, sizeof(signal)) != sizeof(signal)) return std::nullopt;
  return signal;
}

bool is_orphaned_group() {
  const pid_t parent = getppid();
  return getsid(parent) != getsid(0) || getpgid(parent) == getpgrp();
}

}  // namespace rp
