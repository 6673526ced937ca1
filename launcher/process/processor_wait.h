// launcher/process/processor_wait.h
// Finds out how long a process could not go on although it had something to do: because its threads waited for a
// processor that others use, or for a disk.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <vector>

#include "launcher/process/process_stat.h"

namespace rp {

class ProcessorWait {
 public:
  // Returns for how much of the last `slice_ns`, the time since the last call, the thread that waited longest has
  // waited. Threads that were not there at the last call are counted from the next one on.
  [[nodiscard]] std::int64_t waited_ns(const std::vector<ThreadTimes>& threads, std::int64_t slice_ns);

 private:
  struct Thread {
    ThreadTimes last{};
    std::int64_t counted_ns = 0;  // of a wait that has not ended yet, so that the kernel has not counted it
  };

  std::map<pid_t, Thread> threads_;
};

}  // namespace rp
