#include "launcher/ending.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>

#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr std::array kPreemptingSignals = {SIGTERM, SIGHUP, SIGUSR1};

// After it has written its state, a preempted program may end by the signal, with kPreempted, or
// with 0.
bool ended_for_preemption(const RunEnd& end) {
  if (!end.preempted) return false;
  const int code = exit_code_of_status(end.coordinator_status);
  if (code == static_cast<int>(ExitCode::kPreempted)) return true;
  return std::ranges::any_of(kPreemptingSignals, [&](int number) {
    return code == 128 + number || (code == 0 && end.stop_signals.contains(number));
  });
}

}  // namespace

int exit_code_of_status(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

int exit_code_of_run(const RunEnd& end) {
  if (end.hung) return static_cast<int>(ExitCode::kHang);
  if (end.set_aside) return static_cast<int>(ExitCode::kTaskSetAside);
  if (end.failed_worker_status) {
    const int code = exit_code_of_status(*end.failed_worker_status);
    return code == 0 ? static_cast<int>(ExitCode::kUserError) : code;
  }
  if (end.cut_short) return 128 + SIGINT;
  if (ended_for_preemption(end)) return static_cast<int>(ExitCode::kPreempted);
  return exit_code_of_status(end.coordinator_status);
}

}  // namespace rp
