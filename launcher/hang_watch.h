// launcher/hang_watch.h
// Finds the process that holds up its run: one that is stopped, one whose task takes far longer than any before, or one
// that does not start.
//
// Judges by what the processes publish on the fault board and by the kernel's view of them, so it needs no process to
// answer. Time counts only while rp-launch itself runs, and not while a debugger is attached to a process of the run.
// Design: docs/design/replay.md.
//
// A run that waits for other nodes does not hang: what it waits for is in their hands. It may be that all nodes wait
// for each other. No node can see that alone, so each of them measures its own wait, and the coordinators compare them
// (nodes/heartbeats.h).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/system/clock.h"
#include "launcher/process/process_stat.h"
#include "launcher/process/processor_wait.h"
#include "launcher/process/run_dump.h"
#include "launcher/process/runtime_settings.h"

namespace rp {

// Describes a process that holds up its run.
struct Hang {
  std::size_t process = 0;  // its place in the list: 0 is the coordinator
  std::string what;         // "was stopped by a signal for 5.0 s"
  pid_t thread = 0;         // the thread that holds up the run; 0: none, since the process is stopped
};

// Owned by the Supervisor.
class HangWatch {
 public:
  // How the kernel sees processes; replaced in tests.
  struct Kernel {
    std::function<pid_t(pid_t)> tracer_of = rp::tracer_of;
    std::function<std::vector<ThreadTimes>(pid_t)> thread_times = rp::thread_times;
    std::function<pid_t(pid_t, const std::string&)> thread_named = rp::thread_named;
  };

  // `expects_debuggers`: processes that have crashed wait for a debugger (--attach-on-fault), as long as it takes.
  explicit HangWatch(bool expects_debuggers = false) : HangWatch(Kernel{}, expects_debuggers) {}
  explicit HangWatch(Kernel kernel, bool expects_debuggers = false)
      : kernel_(std::move(kernel)), expects_debuggers_(expects_debuggers) {}

  // Sets after how many seconds without progress a process hangs. 0 means 600, and if `may_adapt`, the limit for a
  // worker's task then follows from the run itself: kMinFactor times the longest time without progress so far, at least
  // kMinNs (kFirstMinNs at the beginning, when layers run for the first time). Time that its threads wait for a
  // processor does not count.
  void set_wait_timeout(int seconds, bool may_adapt);
  // Sets how many seconds a worker may take to start.
  void set_attach_timeout(int seconds) { start_ns_ = seconds * kNsPerSecond; }
  // Finds no hang from now on, because somebody looks into a process.
  void turn_off() { is_off_ = true; }
  // Turns the adaptation off, because a tool makes a process slow.
  void expect_slow_tasks() { adapts_ = false; }

  // Looks at the processes at time `now_ns`; the coordinator comes first. Must be called at next_check(), and may be
  // called earlier. Returns a process that hangs; adds notes for the user to `notes`.
  [[nodiscard]] std::optional<Hang> check(const std::vector<ProcessSnapshot>& processes, std::int64_t now_ns,
                                          std::string& notes);
  [[nodiscard]] const Deadline& next_check() const { return next_check_; }
  // Returns for how long the run has waited for other nodes, at the last check, without progress and without a message
  // from them; 0: it does not.
  [[nodiscard]] std::int64_t node_wait_ns() const { return node_wait_ns_; }
  // Has check() called at once: the state of a process has changed.
  void check_soon() { next_check_ = Deadline::after_ns(0); }

  static constexpr std::int64_t kIntervalNs = kNsPerSecond / 2;
  static constexpr std::int64_t kStoppedNoteNs = kNsPerSecond / 5;
  static constexpr std::int64_t kStoppedNs = 5 * kNsPerSecond;  // where workers are replaced; at most the wait timeout
  static constexpr std::int64_t kFirstMinNs = 60 * kNsPerSecond;
  static constexpr std::int64_t kMinNs = 10 * kNsPerSecond;
  static constexpr std::int64_t kMinFactor = 20;

 private:
  struct Process {
    pid_t pid = 0;
    std::optional<std::int64_t> stopped_ns{};  // how long it has been stopped
    std::int64_t starting_ns = 0;              // how long it has been starting
    bool is_stop_reported = false;
  };
  // What a run without progress waits for.
  struct Culprit {
    std::size_t process = 0;
    std::string thread{};  // the thread's name in the kernel
    std::int64_t slot = -1;
    bool is_other_node = false;  // then the rest means nothing
  };

  [[nodiscard]] std::optional<Hang> check_stopped(const std::vector<ProcessSnapshot>& processes, std::int64_t slice_ns,
                                                  std::string& notes);
  [[nodiscard]] std::optional<Hang> check_starting(const std::vector<ProcessSnapshot>& processes,
                                                   std::int64_t slice_ns);
  [[nodiscard]] std::optional<Hang> check_progress(const std::vector<ProcessSnapshot>& processes,
                                                   std::int64_t slice_ns);
  // Returns nothing if the run waits for nothing but the user's program.
  [[nodiscard]] static std::optional<Culprit> culprit_of(const std::vector<ProcessSnapshot>& processes);
  // Somebody has stopped the run's coordinator, or looks into a process or will.
  [[nodiscard]] bool is_held(const std::vector<ProcessSnapshot>& processes) const;
  // A person looks into the process, or will.
  [[nodiscard]] bool is_looked_into(const ProcessSnapshot& process) const;
  [[nodiscard]] std::int64_t adapted_limit_ns(const ProcessSnapshot& coordinator, const Culprit& culprit) const;
  void forget_silence();

  Kernel kernel_;
  bool expects_debuggers_;
  std::int64_t wait_ns_ = kDefaultWaitTimeoutSeconds * kNsPerSecond;
  bool may_replace_ = false;
  bool adapts_ = false;
  bool is_off_ = false;
  std::int64_t start_ns_ = 120 * kNsPerSecond;
  Deadline next_check_ = Deadline::after_ns(kIntervalNs);
  std::int64_t checked_ns_ = 0;  // time of the last check
  std::vector<Process> processes_;
  std::vector<ProcessSnapshot> last_;
  std::int64_t node_wait_ns_ = 0;      // without progress until now, because of other nodes
  std::int64_t silent_ns_ = 0;         // without progress until now, because of a process of this node
  std::int64_t longest_ns_ = 0;        // without progress, before there was some
  std::int64_t at_work_ns_ = 0;        // of silent_ns_: without the culprit's waits for a processor or a disk
  ProcessorWait suspect_wait_;         // of the culprit
  std::map<std::int64_t, int> hangs_;  // by slot
};

}  // namespace rp
