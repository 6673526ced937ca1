// launcher/oom_watch.h
// Finds out which processes were ended by the kernel's out-of-memory killer, from the counters of the control groups.
#pragma once

#include <cstdint>
#include <string>

#include "common/system/cgroup.h"

namespace rp {

// Owned by the Supervisor.
class OomWatch {
 public:
  // Counts from now on. `cgroup`: the group of the run's processes.
  explicit OomWatch(Cgroup cgroup);

  // Returns what the report of a death says about memory, or "" if the out-of-memory killer has nothing to do with it.
  // `status`: in the format of waitpid(). Must be called once for each death: each accounts for one kill.
  [[nodiscard]] std::string explain_death(int status);

 private:
  Cgroup cgroup_;
  std::uint64_t num_seen_;  // kills that were there at the start or that a death accounts for
};

}  // namespace rp
