// launcher/machine/child_process.h
// One process that rp-launch started: how it is born, its pidfd, its end.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/system/fd.h"
#include "launcher/machine/topology.h"

namespace rp {

struct ChildSpec {
  std::filesystem::path program;
  std::vector<std::string> arguments;       // the first is the program's name
  std::vector<std::string> environment;     // "NAME=value"
  std::array<std::optional<int>, 3> stdio;  // descriptors for 0, 1, 2; nullopt: the launcher's own
  std::vector<int> inherited;               // stay open under their numbers, whatever their flags
  CpuList cpus;                             // empty: not bound
  bool own_group = true;                    // leads a process group of its own
  bool ignores_stop_signals = false;        // INT, TERM, HUP, USR1 start out ignored
  int oom_score_added = 0;
  sigset_t signal_mask{};  // the mask that the launcher itself was started with
  rlimit open_files{};     // likewise its limit on descriptors
};

// Owns the child until it is reaped; kills it at its own destruction, and leaves one that then hangs in the kernel to
// whoever reaps next.
class ChildProcess {
 public:
  // REQUIRES: called in the main thread of a process with one thread (the parent-death signal belongs to the thread
  // that forks). Returns after the exec. Throws rp::Error kCannotExecute, kNotFound, or kNoResource if there can be no
  // further process.
  [[nodiscard]] static ChildProcess start(const ChildSpec& spec);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) = delete;
  ~ChildProcess();

  [[nodiscard]] pid_t pid() const { return pid_; }
  // Readable once the process has ended.
  [[nodiscard]] int pidfd() const { return pidfd_.get(); }
  // Its status as waitpid() gives it, once it has ended and been reaped.
  [[nodiscard]] const std::optional<int>& status() const { return status_; }

  // Reaps the process if it has ended. True if it is (now) reaped.
  bool try_reap();
  // Does nothing once it is reaped.
  void send_signal(int signal_number);
  // The same to it and, if it leads a group, to all of that.
  void send_signal_to_group(int signal_number);
  // SIGKILL to it and, if it leads a group, to all that is left of that group; also after its own end.
  void kill_group();

 private:
  ChildProcess(pid_t pid, UniqueFd pidfd, bool own_group);

  pid_t pid_;
  UniqueFd pidfd_;
  bool own_group_;
  std::optional<int> status_;
};

// Kills and reaps whatever processes of others were handed to this one as their reaper, until none is left or
// `timeout_ns` more have passed. REQUIRES: SIGCHLD is blocked; this process has no children of its own any more.
void end_adopted_processes(std::int64_t timeout_ns);
// Reaps those of them that have ended; leaves own children, given by their pids, alone.
void reap_adopted_processes(const std::vector<pid_t>& own);

}  // namespace rp
