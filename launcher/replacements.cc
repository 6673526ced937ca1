#include "launcher/replacements.h"

#include <sys/wait.h>

#include <algorithm>

#include "roundpipe/error.h"

namespace rp {

Replacements::Decision Replacements::decide(const Death& death, int num_left) {
  if (policy_ == WorkerFailurePolicy::kAbort) return Decision::kEndRun;
  const bool is_own_end = WIFEXITED(death.status) && WEXITSTATUS(death.status) != static_cast<int>(ExitCode::kHang);
  if (is_own_end) return Decision::kEndRun;
  if (death.slot >= 0 && ++deaths_[death.slot] >= kMaxDeathsPerTask) return Decision::kEndRun;
  if (policy_ == WorkerFailurePolicy::kReplay && restarts_left_ > 0) {
    --restarts_left_;
    return Decision::kReplace;
  }
  return num_left > 0 ? Decision::kShrink : Decision::kEndRun;
}

std::int64_t Replacements::count_start(int worker) {
  const int start = starts_[worker]++;
  return start == 0 ? 0 : kFirstDelayNs << std::min(start - 1, kMaxDoublings);
}

}  // namespace rp
