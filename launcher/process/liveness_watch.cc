#include "launcher/process/liveness_watch.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "common/system/blocked_signals.h"
#include "common/system/retry.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

[[noreturn]] void die_with_launcher() {
  if (getpgrp() == getpid()) kill(0, SIGKILL);
  kill(getpid(), SIGKILL);
  _exit(137);
}

// No process writes into the pipe, so it becomes readable only at end of file.
void watch(int pipe, int stop) {
  pthread_setname_np(pthread_self(), "rp-liveness");
  std::array<pollfd, 2> fds{pollfd{pipe, POLLIN, 0}, pollfd{stop, POLLIN, 0}};
  while (true) {
    if (poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) return;
    if (fds[1].revents != 0) return;
    if (fds[0].revents != 0) die_with_launcher();
  }
}

}  // namespace

LivenessWatch::LivenessWatch(UniqueFd pipe) : pipe_(std::move(pipe)), stop_(eventfd(0, EFD_CLOEXEC)) {
  if (!stop_) {
    throw Error(ExitCode::kNoResource,
                cat("cannot watch rp-launch (", errno_text(errno), "); raise the limit on open files (ulimit -n)"));
  }
  const BlockedSignals blocked;  // signals are for the program's own threads
  thread_ = std::thread(watch, pipe_.get(), stop_.get());
}

LivenessWatch::~LivenessWatch() {
  const std::uint64_t one = 1;
  const ssize_t written = retry_interrupted([&] { return write(stop_.get(), &one, sizeof(one)); });
  if (written == sizeof(one)) thread_.join();
}

}  // namespace rp
