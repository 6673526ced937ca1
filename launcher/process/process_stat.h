// launcher/process/process_stat.h
// Reads the state and the processor time of a process from /proc/PID/stat.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace rp {

struct ProcessStat {
  char state = '?';             // state of the first thread, as the letter that ps shows; '?': no such process
  std::uint64_t cpu_ticks = 0;  // of all threads, also while they end in the kernel; in 1/sysconf(_SC_CLK_TCK) s
};

[[nodiscard]] ProcessStat process_stat(pid_t pid);

}  // namespace rp
