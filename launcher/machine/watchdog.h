// launcher/machine/watchdog.h
// Ends what is left of a run whose rp-launch was killed.
//
// The processes of a run die with rp-launch (child_process.h), but not the processes that those have started. They
// inherit the run's number in the variable RP_RUN, though, whatever session or process group they are in.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

namespace rp {

inline constexpr const char* kRunVariable = "RP_RUN";

// Returns a random number for a run, behind the numbers of the runs that this process is itself a part of:
// "0f1e2d3c4b5a6978/8796a5b4c3d2e1f0".
[[nodiscard]] std::string make_run_number();

// Owns a process that waits until all write ends of a pipe are closed, and then kills every process of this user whose
// RP_RUN contains the run's number, until none is left, for at most 10 s. Leaves those alone that are in another
// control group, as a job is that the program has submitted to a batch system with its own environment.
class Watchdog {
 public:
  // Forks the process. If that is impossible, the run goes without. `write_end`: closed in that process. REQUIRES: this
  // process has one thread, apart from those of NVIDIA's library.
  Watchdog(const std::string& run, int read_end, int write_end);
  Watchdog(Watchdog&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  Watchdog& operator=(Watchdog&&) = delete;
  // Waits for the process. REQUIRES: the write ends are closed, or the process was killed.
  ~Watchdog();

 private:
  pid_t pid_ = -1;
};

}  // namespace rp
