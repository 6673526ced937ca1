// launcher/supervisor.h
// Runs one launch from the first process to the exit code: starts processes, forwards signals and
// output, detects failures, ends the run and reports.
//
// Policy: docs/launcher.md. A single thread waits for signals, messages, output and the ends of
// processes in one poll().
#pragma once

#include <sys/signalfd.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/system/cgroup.h"
#include "launcher/ending.h"
#include "launcher/member.h"
#include "launcher/poll_set.h"
#include "launcher/process/run_dump.h"
#include "launcher/report.h"
#include "launcher/trace/run_trace.h"

namespace rp {

// The phase of a run. The allowed transitions are listed in supervisor.cc.
enum class RunPhase {
  kRunning,        // no failure so far
  kWorkerLost,     // a worker failed: the coordinator may end by itself
  kTerminating,    // the coordinator was sent TERM
  kInterrupted,    // second INT: the coordinator has little time left
  kWorkersEnding,  // the coordinator has ended: the workers are expected to end by themselves
  kKilling,        // everything was sent KILL
  kDone,           // no process is left
};

// Owns everything that belongs to one run. Create and use it in the main thread of a process
// without other threads.
class Supervisor {
 public:
  // Blocks the signals that it handles and never unblocks them. Throws rp::Error.
  explicit Supervisor(LaunchPlan plan);

  // Starts the coordinator and waits until no process of the run is left. Returns the exit code.
  // Throws rp::Error if the coordinator cannot be started.
  [[nodiscard]] int run();

 private:
  void move_to(RunPhase to);
  void on_deadline();
  void on_slow_deaths();
  // Returns whether the coordinator has written a part of the program's state since the last call.
  [[nodiscard]] bool writes_state();

  void add_to(PollSet& set);
  void add_output_to(PollSet& set);
  void read_signals();
  void forward(const signalfd_siginfo& signal);
  void on_interrupt();
  // Stops all processes of the run, this one last, and continues them when this one is continued.
  // Used for Ctrl-Z and for a TSTP from any sender.
  void pause();

  void read_messages(Member& member);
  void on_message(Member& member, Message message);
  void start_workers(Message store);
  // Sends the host store to the workers that have not received it yet, until the kernel's queues
  // are full.
  void send_attaches();

  // Reaps the processes that have ended. The earliest fault counts as the first failure.
  void handle_deaths();
  void on_coordinator_death(Member& coordinator);
  void on_worker_death(Member& worker);
  void note_failure(Member& member);
  // Reports the failure, at most once for each run.
  void report_failure();
  [[nodiscard]] std::vector<ProcessSnapshot> snapshots();
  // Called after the first INT: starts to check periodically whether the run still makes progress.
  void watch_progress();
  void look_for_standstill();
  // Prints what every process does, once for each run. With `anew`, prints it again if something
  // was computed since the last time.
  void dump(const char* why, bool anew = false);
  void kill_workers();
  [[nodiscard]] bool any_worker_is_busy() const;
  // The maximum duration of a phase; 0: no limit.
  [[nodiscard]] std::int64_t patience_ns(RunPhase phase) const;
  [[nodiscard]] bool all_dead() const;
  // Returns the names of the live processes that have used more processor time since the last call
  // than a process needs to end.
  [[nodiscard]] std::string still_running();
  void finish();
  // Writes the output that is queued for stdout and stderr, however slow its readers are. Once a
  // signal has asked the run to end, it waits for them for at most 2 s.
  void write_queued_output();

  [[nodiscard]] Member& coordinator() { return *members_.front(); }

  RunContext run_;
  UniqueFd signals_;
  Cgroup cgroup_;
  std::uint64_t oom_kills_before_;
  std::vector<std::unique_ptr<Member>> members_;  // the coordinator, then the workers
  std::optional<Message> store_;                  // the message kAttach for all workers; keeps its descriptors open
  std::optional<RunTrace> trace_;
  std::vector<Member*> to_attach_;
  RunPhase phase_ = RunPhase::kRunning;
  Deadline deadline_ = Deadline::never();  // of the phase
  std::map<pid_t, std::uint64_t> ticks_;   // processor time of each process at the last call of still_running()
  bool has_been_stopped_ = false;          // rp-launch was stopped, since the loop last waited
  bool is_patience_told_ = false;
  bool is_failure_told_ = false;
  std::uint64_t state_advances_ = 0;  // by the coordinator, at the last call of writes_state()
  int num_interrupts_ = 0;
  bool finished_ = false;  // the coordinator announced its normal end
  RunEnd end_;
  std::optional<Failure> failure_;
  std::vector<ProcessSnapshot> dumped_;          // the processes as last printed
  std::vector<ProcessSnapshot> interrupted_at_;  // the processes at the last check for progress after an INT
  Deadline look_again_ = Deadline::never();
};

}  // namespace rp
