#include "launcher/oom_watch.h"

#include <signal.h>
#include <sys/wait.h>

#include <optional>
#include <utility>

#include "common/text.h"

namespace rp {

OomWatch::OomWatch(Cgroup cgroup) : cgroup_(std::move(cgroup)), num_seen_(cgroup_.num_oom_kills().value_or(0)) {}

std::string OomWatch::explain_death(int status) {
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) return "";
  if (cgroup_.num_oom_kills().value_or(0) <= num_seen_) return "";
  ++num_seen_;
  const std::optional<CgroupMemory> limit = cgroup_.memory_limit();
  if (!limit) return "the memory of the machine was used up";
  return cat("the job's control group has a memory limit of ", bytes_text(limit->limit_bytes),
             limit->peak_bytes ? cat(" and has used up to ", bytes_text(*limit->peak_bytes)) : "");
}

}  // namespace rp
