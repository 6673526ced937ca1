// launcher/member.h
// Represents one process of a run in rp-launch: the child, its channel and its output.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/hang_watch.h"
#include "launcher/launch_plan.h"
#include "launcher/lifecycles.h"
#include "launcher/machine/child_process.h"
#include "launcher/output.h"
#include "launcher/process/channel.h"
#include "launcher/run_context.h"

namespace rp {

// Owned by the supervisor. The constructor starts the process; the destructor kills it if it still
// runs.
class Member {
 public:
  // What a coordinator does if it takes the place of a dead one.
  enum class Restart : std::uint8_t { kNo, kGoesOn, kOnlySaves };
  // REQUIRES: as for ChildProcess::start(). Throws what ChildProcess::start() throws, and rp::Error kOutputFailed if a
  // log file cannot be created.
  Member(RunContext& run, const PlannedProcess& planned, Restart restart = Restart::kNo);

  [[nodiscard]] const std::string& name() const { return planned_.name; }
  [[nodiscard]] int board_index() const { return planned_.board_index; }
  [[nodiscard]] int worker() const { return planned_.board_index - 1; }
  [[nodiscard]] bool is_worker() const { return planned_.is_worker(); }
  [[nodiscard]] ChildProcess& process() { return process_; }
  // The process of the run: the child, or the one that the child's tool has started.
  [[nodiscard]] pid_t pid() const;
  // The child is a tool that runs the process: --debug-worker.
  [[nodiscard]] bool is_under_tool() const { return !planned_.tool.empty(); }
  // The tool still runs; a debugger may have left its process, which goes on.
  [[nodiscard]] bool has_tool() const { return is_under_tool() && !process_.status(); }
  // A descriptor that is readable once the process may have ended.
  [[nodiscard]] int end_fd() const;
  [[nodiscard]] Channel& channel() { return channel_; }
  [[nodiscard]] std::vector<std::unique_ptr<ProcessOutput>>& outputs() { return outputs_; }
  // The log file of its stderr; empty if there is none.
  [[nodiscard]] const std::string& log_file() const { return log_file_; }

  [[nodiscard]] bool is(MemberState state) const { return lifecycle_.is(state); }
  [[nodiscard]] bool alive() const { return !is(MemberState::kEnded) && !is(MemberState::kEndedOnPurpose); }
  // Sends a message, later if the queue of its channel is full: send_unsent() must then be called once it is not.
  void send(Message message);
  void send_unsent();
  [[nodiscard]] bool has_unsent() const { return !unsent_.empty() && !channel_.peer_gone(); }
  // Sends the host store, as the message kAttach, to a worker that was not sent it yet. Does nothing if the queue of
  // its channel is full.
  void send_store(Message& store);
  // Notes that the process has the host store. Does nothing once it was killed or has ended: the report may come late.
  void set_attached();
  // Kills the process and its group. Its death then does not count as a failure. Kills what is left of the group if the
  // process itself has ended.
  void kill_on_purpose();
  // Ends a process that hangs, as a failure: with SIGABRT to the thread that hangs, so that the process records where
  // that is, and with SIGKILL if that does not end it. end_if_overdue() must be called from time to time until it is
  // dead.
  void end_hung(const Hang& hang);
  // `keeps_crashed`: a process that has recorded its fault waits for a debugger.
  void end_if_overdue(bool keeps_crashed = false);
  // Why rp-launch has ended the process as a failure; nothing if it has not.
  [[nodiscard]] const std::optional<Hang>& hang() const { return hang_; }
  // Reaps the process if it has ended. Returns true if it is reaped now. Under a tool, both must have ended: a debugger
  // may be detached from a process that goes on.
  [[nodiscard]] bool try_reap();

  // The process took the place of a worker that was lost.
  void set_replaces() { replaces_ = true; }
  [[nodiscard]] bool replaces() const { return replaces_; }

  // Records that the kernel's out-of-memory killer has ended the process: Failure::out_of_memory.
  void set_out_of_memory(std::string text) { out_of_memory_ = std::move(text); }
  [[nodiscard]] const std::string& out_of_memory() const { return out_of_memory_; }

  // Records that a profiler or sanitizer watches the process, so it needs more time to end.
  void set_watched() { is_watched_ = true; }
  [[nodiscard]] bool is_watched() const { return is_watched_; }

  // Reads all output that the process has written so far. For a dead process, that is all of its
  // output.
  void read_output();
  // Call open() or release() of both output streams: see ProcessOutput.
  void open_output();
  std::string release_output();

 private:
  // Creates the pipes or files for stdout and stderr, unless the process uses those of the launcher
  // (as the coordinator does without tags, times and log files).
  void redirect_output(RunContext& run, ChildSpec& spec);
  // Has the next of stdout and stderr pass through rp-launch, whole lines at a time.
  void pass_output_on(const RunContext& run, bool held, OutputSink* sink);
  [[nodiscard]] ChildProcess start(RunContext& run);
  [[nodiscard]] std::vector<std::string> environment(const RunContext& run) const;
  void move_to(MemberState state) { lifecycle_.move_to(state, board_index()); }
  // Returns whether the process that a tool has started may still run.
  [[nodiscard]] bool outlives_tool() const;

  PlannedProcess planned_;
  Restart restart_;
  Channel channel_;
  std::optional<Channel> child_end_;   // the child's end; closed here once the child has started
  std::vector<UniqueFd> child_stdio_;  // for its stdout and stderr; closed here once it has started
  std::vector<std::unique_ptr<ProcessOutput>> outputs_;
  std::string log_file_;
  std::deque<Message> unsent_;
  Lifecycle<kMemberLifecycle> lifecycle_;
  bool is_watched_ = false;
  std::optional<Hang> hang_;
  bool replaces_ = false;
  std::string out_of_memory_;
  Deadline abort_deadline_ = Deadline::never();
  FaultBoardEntry entry_;
  UniqueFd tool_child_;  // a pidfd of the process that the tool has started; set when it has the host store
  ChildProcess process_;
};

}  // namespace rp
