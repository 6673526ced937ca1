// launcher/process/process_stat.h
// Reads what the kernel tells of a process in /proc/PID. All functions answer for a process that has ended, too.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace rp {

struct ProcessStat {
  char state = '?';              // state of the first thread, as the letter that ps shows; '?': no such process
  std::uint64_t cpu_ticks = 0;   // of all threads, also while they end in the kernel; in 1/sysconf(_SC_CLK_TCK) s
  std::int64_t start_ticks = 0;  // from the start of the machine to that of the process, in the same unit
};

// What a thread has done since its start, in ns.
struct ThreadTimes {
  pid_t thread = 0;
  char state = '?';           // as of ProcessStat
  std::int64_t run_ns = 0;    // on a processor
  std::int64_t delay_ns = 0;  // waited for one, although it could have run; without the wait that has not ended yet
};

// The memory of a process that is in RAM now.
struct ProcessMemory {
  std::uint64_t own_bytes = 0;     // anonymous memory, and files such as its program
  std::uint64_t shared_bytes = 0;  // shared memory that it has touched: most of it is the host store, which all share
};

[[nodiscard]] ProcessStat process_stat(pid_t pid);

// Costs a few microseconds however large the memory is: the kernel keeps these counts.
[[nodiscard]] ProcessMemory process_memory(pid_t pid);

// Returns the process that traces this one, such as a debugger; 0: none.
[[nodiscard]] pid_t tracer_of(pid_t pid);

// Returns the threads of a process; none if the kernel does not tell.
[[nodiscard]] std::vector<ThreadTimes> thread_times(pid_t pid);

// Returns the id of the thread with this name, or `pid`, the main thread, if there is none.
[[nodiscard]] pid_t thread_named(pid_t pid, const std::string& name);

}  // namespace rp
