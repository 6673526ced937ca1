// launcher/machine/child_process.h
// Starts, signals, kills and reaps one child process of rp-launch.
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
  std::vector<std::string> arguments;       // including the program's name, which comes first
  std::vector<std::string> environment;     // "NAME=value"
  std::array<std::optional<int>, 3> stdio;  // descriptors to use as 0, 1 and 2; nullopt: that of the launcher
  std::vector<int> inherited;               // descriptors that stay open under their numbers, even if close-on-exec
  CpuList cpus;                             // empty: not bound
  bool own_group = true;                    // the child leads a new process group
  bool ignores_stop_signals = false;        // the child starts with INT, TERM, HUP and USR1 ignored
  std::optional<int> terminal;              // the child's group moves to the foreground of this terminal
  int oom_score_added = 0;
  sigset_t signal_mask{};  // the mask with which the launcher was started
  rlimit open_files{};     // the limit on descriptors with which the launcher was started
};

// Owns the child until it is reaped. The destructor kills the child; if the child then hangs in the
// kernel, it leaves the child to a later reaper.
class ChildProcess {
 public:
  // Starts the child and returns after its exec. REQUIRES: called in the main thread of a process
  // with one thread (the parent-death signal is bound to the thread that forks). Throws rp::Error
  // kCannotExecute, kNotFound, or kNoResource if no further process can be created.
  [[nodiscard]] static ChildProcess start(const ChildSpec& spec);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) = delete;
  ~ChildProcess();

  [[nodiscard]] pid_t pid() const { return pid_; }
  // A descriptor that is readable once the process has ended.
  [[nodiscard]] int pidfd() const { return pidfd_.get(); }
  // The status in the format of waitpid(); set once the process has ended and been reaped.
  [[nodiscard]] const std::optional<int>& status() const { return status_; }

  // Reaps the process if it has ended. Returns true if it is reaped now or was before.
  bool try_reap();
  // Sends a signal to the process, or to one of its threads. Does nothing once it is reaped.
  void send_signal(int signal_number);
  void send_signal_to_thread(pid_t thread, int signal_number);
  // Sends a signal to the process or, if it leads a group, to the whole group. Does nothing once
  // the process is reaped.
  void send_signal_to_group(int signal_number);
  // Sends SIGKILL to the process and, if it leads a group, to all remaining processes of that
  // group, even after the process itself has ended.
  void kill_group();

 private:
  ChildProcess(pid_t pid, UniqueFd pidfd, bool own_group);

  pid_t pid_;
  UniqueFd pidfd_;
  bool own_group_;
  std::optional<int> status_;
};

// Kills and reaps the processes that this process has adopted as their subreaper, until none is
// left or `timeout_ns` have passed. REQUIRES: SIGCHLD is blocked; this process has no children of
// its own left.
void end_adopted_processes(std::int64_t timeout_ns);
// Reaps the adopted processes that have ended. Leaves the process's own children, whose pids are in
// `own`, alone.
void reap_adopted_processes(const std::vector<pid_t>& own);

}  // namespace rp
