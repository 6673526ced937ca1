#include "launcher/replacements.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>

#include "roundpipe/error.h"

namespace rp {

namespace {

// The delay of a start after `num_failures` processes in a row that came to nothing.
std::int64_t delay_after(int num_failures) {
  constexpr std::int64_t kFirstDelayNs = kNsPerSecond / 2;
  constexpr int kMaxDoublings = 5;
  return num_failures == 0 ? 0 : kFirstDelayNs << std::min(num_failures - 1, kMaxDoublings);
}

bool has_ended_with(int status, ExitCode code) {
  return WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(code);
}

}  // namespace

bool has_reported_error(int status) {
  return WIFEXITED(status) && !has_ended_with(status, ExitCode::kHang) && !has_ended_with(status, ExitCode::kGpuFailed);
}

bool ProgramRestarts::decide(bool has_progressed) {
  num_fruitless_ = has_progressed ? 0 : num_fruitless_ + 1;
  return num_fruitless_ < kMaxFruitless && restarts_left_-- > 0;
}

std::int64_t ProgramRestarts::delay_ns() const { return delay_after(num_fruitless_); }

Replacements::Decision Replacements::decide(const Death& death, int num_left) {
  if (policy_ == WorkerFailurePolicy::kAbort) return Decision::kEndRun;
  int& failed_starts = failed_starts_[death.worker];
  failed_starts = death.has_served ? 0 : failed_starts + 1;
  // A GPU that fails at once would fail again.
  const bool cannot_start = has_ended_with(death.status, ExitCode::kGpuFailed) && !death.replaces && !death.has_served;
  if ((has_reported_error(death.status) || cannot_start) && !death.hung)
    return death.replaces && !death.has_served && num_left > 0 ? Decision::kShrink : Decision::kEndRun;
  const bool was_killed =
      WIFSIGNALED(death.status) && WTERMSIG(death.status) == SIGKILL && !death.out_of_memory && !death.hung;
  if (death.slot >= 0 && !was_killed && ++deaths_[death.slot] >= kMaxDeathsPerTask) return Decision::kSetAside;
  if (policy_ == WorkerFailurePolicy::kReplay && restarts_left_ > 0) {
    --restarts_left_;
    return Decision::kReplace;
  }
  return num_left > 0 ? Decision::kShrink : Decision::kEndRun;
}

std::int64_t Replacements::delay_ns(int worker) const {
  const auto found = failed_starts_.find(worker);
  return found == failed_starts_.end() ? 0 : delay_after(found->second);
}

}  // namespace rp
