// benchmarks/forked.h
// Runs a part of a measuring program in a process of its own, since CUDA must not be used before a
// fork, and a process that hangs in the driver can only be killed.
#pragma once

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <thread>
#include <utility>

#include "common/system/clock.h"
#include "roundpipe/error.h"

namespace rp {

// A child process that runs a function and exits with 0, or with the exit code of the error that
// the function threw. The destructor kills it if it still runs; the kernel kills it if the thread
// that made it ends. Move-only.
class Forked {
 public:
  template <typename Body>
  explicit Forked(Body&& body) {
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ < 0) throw Error(ExitCode::kNoResource, "cannot start a process; look at ulimit -u");
    if (pid_ > 0) return;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // the parent died before prctl()
    int code = 0;
    try {
      body();
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      code = static_cast<int>(error.code());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      code = 1;
    }
    std::fflush(nullptr);
    _exit(code);
  }
  Forked(Forked&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  Forked& operator=(Forked&&) = delete;
  ~Forked() { kill(); }

  // Kills the child and returns when it has ended.
  void kill() {
    if (pid_ <= 0) return;
    (void)::kill(pid_, SIGKILL);
    (void)waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  // Waits for the child and returns its exit code; 128 plus the signal if a signal ended it. If the
  // deadline passes, kills it and returns kHang.
  [[nodiscard]] int join(const Deadline& deadline) {
    int status = 0;
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      if (deadline.passed()) {
        kill();
        return static_cast<int>(ExitCode::kHang);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace rp
