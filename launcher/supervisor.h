// launcher/supervisor.h
// Runs one launch from the first process to the exit code: starts, forwards, notices, ends, reports.
//
// Policy: docs/launcher.md. One thread; it waits for signals, messages, output and ends of processes in one poll().
#pragma once

#include <sys/signalfd.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/system/cgroup.h"
#include "launcher/ending.h"
#include "launcher/member.h"
#include "launcher/poll_set.h"
#include "launcher/process/run_dump.h"
#include "launcher/report.h"
#include "launcher/trace/run_trace.h"

namespace rp {

// How far a run is. The transitions are the table in supervisor.cc.
enum class RunPhase {
  kRunning,        // all is well
  kWorkerLost,     // a worker failed: the coordinator may end by itself
  kTerminating,    // the coordinator was sent TERM
  kInterrupted,    // second INT: the coordinator has little time left
  kWorkersEnding,  // the coordinator has ended: the workers follow by themselves
  kKilling,        // everything was sent KILL
  kDone,           // nothing is left
};

// Owns everything of one run. Made and used in the main thread of a process without other threads.
class Supervisor {
 public:
  // Blocks the signals that it handles, for good. Throws rp::Error.
  explicit Supervisor(LaunchPlan plan);

  // Starts the coordinator, stays until nothing of the run is left, and returns the exit code. Throws rp::Error if the
  // coordinator cannot be started.
  [[nodiscard]] int run();

 private:
  void move_to(RunPhase to);
  void on_deadline();
  void on_slow_deaths();
  // Whether the coordinator has written of the program's state since the last call.
  [[nodiscard]] bool writes_state();

  void add_to(PollSet& set);
  void add_output_to(PollSet& set);
  void read_signals();
  void forward(const signalfd_siginfo& signal);
  void on_interrupt();
  // All processes of the run stop, this one last, and go on together: Ctrl-Z, and whoever sends TSTP.
  void pause();

  void read_messages(Member& member);
  void on_message(Member& member, Message message);
  void start_workers(Message store);
  // Sends the host store to those workers that have not got it yet, as far as the kernel takes it.
  void send_attaches();

  // Reaps whoever ended; the earliest fault counts as the first failure.
  void handle_deaths();
  void on_coordinator_death(Member& coordinator);
  void on_worker_death(Member& worker);
  void note_failure(Member& member);
  // Once a run.
  void tell_failure();
  [[nodiscard]] std::vector<ProcessSnapshot> snapshots();
  // After the first INT: whether the run goes on is looked at again and again.
  void watch_progress();
  void look_for_standstill();
  // Prints what every process does. Once a run; `anew`: once more if something was computed since.
  void dump(const char* why, bool anew = false);
  void kill_workers();
  [[nodiscard]] bool any_worker_is_busy() const;
  // How long a phase may last; 0: without a limit.
  [[nodiscard]] std::int64_t patience_ns(RunPhase phase) const;
  [[nodiscard]] bool all_dead() const;
  // Names of those that have used a processor since the last call, more than for an end.
  [[nodiscard]] std::string still_running();
  void finish();
  // Writes what is queued for stdout and stderr, however long their readers take; 2 s once a signal asks for an end.
  void write_queued_output();

  [[nodiscard]] Member& coordinator() { return *members_.front(); }

  RunContext run_;
  UniqueFd signals_;
  Cgroup cgroup_;
  std::uint64_t oom_kills_before_;
  std::vector<std::unique_ptr<Member>> members_;  // the coordinator, then the workers
  std::optional<Message> store_;                  // kAttach for all workers, with the descriptors that are held
  std::optional<RunTrace> trace_;
  std::vector<Member*> to_attach_;
  RunPhase phase_ = RunPhase::kRunning;
  Deadline deadline_ = Deadline::never();  // of the phase
  std::map<pid_t, std::uint64_t> ticks_;   // of processes that were killed, when they were looked at
  bool has_been_stopped_ = false;          // since the loop waited last
  bool is_patience_told_ = false;
  bool is_failure_told_ = false;
  std::uint64_t state_heartbeat_ = 0;  // the coordinator's, when it was looked at
  int num_interrupts_ = 0;
  bool finished_ = false;  // the coordinator announced its normal end
  RunEnd end_;
  std::optional<Failure> failure_;
  std::vector<ProcessSnapshot> dumped_;          // what was printed last
  std::vector<ProcessSnapshot> interrupted_at_;  // when the run was last looked at after an INT
  Deadline look_again_ = Deadline::never();
};

}  // namespace rp
