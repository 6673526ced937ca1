// launcher/process/process_stat.h
// What the kernel tells of a process in /proc/PID/stat.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace rp {

struct ProcessStat {
  char state = '?';             // the letter that ps shows, of the first thread; '?': there is no such process
  std::uint64_t cpu_ticks = 0;  // of all threads, at their end in the kernel, too: sysconf(_SC_CLK_TCK) a second
};

[[nodiscard]] ProcessStat process_stat(pid_t pid);

}  // namespace rp
