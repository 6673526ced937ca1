// launcher/supervisor.h
// Runs one launch from the first process to the exit code: starts processes, forwards signals and
// output, detects failures, ends the run and reports.
//
// Policy: docs/launcher.md. A single thread waits for signals, messages, output and the ends of
// processes in one poll().
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "launcher/ending.h"
#include "launcher/events/poll_set.h"
#include "launcher/events/signal_reader.h"
#include "launcher/hang_watch.h"
#include "launcher/lifecycles.h"
#include "launcher/lost_workers.h"
#include "launcher/member.h"
#include "launcher/oom_watch.h"
#include "launcher/progress_watch.h"
#include "launcher/report.h"
#include "launcher/trace/run_trace.h"

namespace rp {

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
  void on_time_limit();
  // Returns whether the coordinator has written a part of the program's state since the last call.
  [[nodiscard]] bool writes_state();

  [[nodiscard]] Deadline next_deadline() const;
  void add_to(PollSet& set);
  void add_output_to(PollSet& set);
  void read_signals();
  void forward(const signalfd_siginfo& signal);
  void on_interrupt();
  // Stops all processes of the run, this one last, and continues them when this one is continued.
  // Used for Ctrl-Z and for a TSTP from any sender.
  void pause();
  // The process whose tool still runs, if there is one.
  [[nodiscard]] Member* tool_member() const;
  // Pauses the run if the terminal has stopped the tool: by a key, or because the run is in the background.
  void pause_with_tool();
  // Gives the tool the terminal if this process has it, and continues the tool.
  void resume_tool();

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
  // Has another process take the coordinator's place, if the program can go on. Returns false if the run must end.
  [[nodiscard]] bool go_on_without_coordinator();
  // Ends the workers, and has the program started again not before `start`.
  void start_program_again(const Deadline& start);
  // Starts the program again once no process of the run is left and the time has come.
  void restart_program();
  // Has the coordinator go on without a worker that has died. Returns false if the run must end.
  [[nodiscard]] bool go_on_without(Member& worker);
  // Ends the run because of a worker that has died.
  void end_run_for(Member& worker);
  // Returns whether the worker's last process has begun to compute.
  [[nodiscard]] bool has_served(const Member& worker) const;
  [[nodiscard]] int num_alive_workers() const;
  void report_death(Member& worker, MessageKind kind);
  // Starts the replacements of lost workers that are due.
  void start_replacements();
  // Has a worker that the run goes on without started again, as the user has asked.
  void add_worker(int worker);
  // Looks for a process that hangs, and ends it: the rest follows from its death. Without the coordinator the run ends.
  void check_hangs();
  // Says of each process that has crashed and waits for a debugger how to attach one, and lets it end once that has
  // left.
  void serve_debuggers();
  [[nodiscard]] Failure failure_of(Member& member) const;
  void note_failure(Member& member);
  // Reports the failure, at most once for each run.
  void report_failure();
  void kill_workers();
  [[nodiscard]] bool any_worker_is_busy() const;
  // The maximum duration of a phase; 0: no limit.
  [[nodiscard]] std::int64_t patience_ns(RunPhase phase) const;
  [[nodiscard]] bool all_dead() const;
  void finish();
  // Writes the output that is queued for stdout and stderr, however slow its readers are. Once a
  // signal has asked the run to end, it waits for them for at most 2 s.
  void write_queued_output();

  [[nodiscard]] Member& coordinator() { return *members_.front(); }

  RunContext run_;
  SignalReader signals_;
  OomWatch oom_;
  std::vector<std::unique_ptr<Member>> members_;  // the coordinator, then the workers
  std::optional<Message> store_;                  // the message kAttach for all workers; keeps its descriptors open
  std::optional<RunTrace> trace_;
  Lifecycle<kRunLifecycle> phase_;
  Deadline deadline_ = Deadline::never();  // of the phase
  ProgressWatch progress_{run_, members_};
  HangWatch hangs_;
  struct Visit {
    bool is_told = false;
    bool has_begun = false;
  };
  std::map<pid_t, Visit> visits_;                  // of debuggers, by process that has crashed
  Deadline visits_check_ = Deadline::after_ns(0);  // never, unless --attach-on-fault is given
  bool has_been_stopped_ = false;                  // rp-launch was stopped, since the loop last waited
  bool is_patience_told_ = false;
  bool is_failure_told_ = false;
  std::uint64_t state_advances_ = 0;  // by the coordinator, at the last call of writes_state()
  int num_interrupts_ = 0;
  bool finished_ = false;  // the coordinator announced its normal end
  RunEnd end_;
  std::optional<Failure> failure_;
  LostWorkers lost_;
  ProgramRestarts restarts_;
  bool is_restartable_ = false;                 // the coordinator has declared that another process can take its place
  Deadline time_limit_ = Deadline::never();     // of the run
  Deadline restart_start_ = Deadline::never();  // in the phase kRestarting: not before that
};

}  // namespace rp
