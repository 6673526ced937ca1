// pipeline/session_impl.h
// Implements a Session: the role of the process, its signals, its connection to rp-launch, and its
// pipelines.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/mutex.h"
#include "hoststore/records/fault_board.h"
#include "launcher/process/channel.h"
#include "launcher/process/liveness_watch.h"
#include "launcher/process/process_role.h"
#include "launcher/trace/run_trace.h"
#include "nodes/agreement.h"
#include "nodes/heartbeats.h"
#include "nodes/network.h"
#include "pipeline/process/lifecycles.h"
#include "pipeline/process/worker_watch.h"
#include "pipeline/runtime.h"
#include "roundpipe/pipeline.h"
#include "roundpipe/session.h"

namespace rp {

class Session::Impl {
 public:
  Impl(int argc, char** argv, const SessionOptions& options);
  ~Impl();

  [[nodiscard]] bool is_coordinator() const { return role_.role != Role::kWorker; }
  // Returns whether this is the coordinator of `rp-launch replay`. It computes one task of another run, so main() must
  // behave as in a worker.
  [[nodiscard]] bool replays_task() const { return !role_.task_file.empty(); }
  [[nodiscard]] bool is_alone() const { return role_.role == Role::kAlone; }
  [[nodiscard]] int num_workers() const { return role_.num_workers; }
  // Returns the signal that requests the end of the program at this call, on all nodes, or 0.
  [[nodiscard]] int agreed_stop_signal();
  [[nodiscard]] std::string from_first_node(const std::string& own);
  // Leaves the network. All nodes must call it, when everything that the program has called is finished. Throws the
  // error of NodeNetwork::report_failure().
  void leave_network();
  [[nodiscard]] NodePlace place() const { return network_ ? network_->place() : NodePlace{}; }
  [[nodiscard]] const RuntimeSettings& settings() const { return settings_; }

  [[nodiscard]] const std::shared_ptr<Runtime>& runtime() { return runtime_; }

  // Returns the pipeline's number. Throws rp::Error after start().
  int add(Pipeline::Impl* pipeline);
  // Ends the run first, after which no thread uses any pipeline's store.
  void remove(Pipeline::Impl* pipeline);

  [[nodiscard]] std::vector<FinishedStep> restarted(int pipeline);
  void start(const std::function<void(const LoadProgress&)>& tell);
  void set_crash_notice(const std::string& text);
  void preempted();

 private:
  [[noreturn]] void serve_as_worker();
  // Has a worker compute the task of the file, and ends the process.
  [[noreturn]] void replay_task();
  // Ends the run because of a task that ends its workers.
  [[noreturn]] void end_for(const Command& set_aside);
  void end();
  void take_remains();
  // If alone: starts the thread of the only worker.
  void start_own_worker();
  // With rp-launch: has it start the workers, and waits until they serve. `fail`: called when the run must end.
  void start_workers(WorkerWatch::Handlers handlers, std::function<void(std::exception_ptr)> fail);
  [[nodiscard]] WorkerWatch::Handlers worker_handlers();
  bool send(MessageKind kind, int worker = -1);
  void tell_limit(MessageKind kind, int seconds);
  void open_trace(const char* program);
  [[nodiscard]] TraceJournal* journal() { return trace_ ? &trace_->journal() : nullptr; }
  // If this process is alone, prints what its threads do; otherwise rp-launch finds hangs. Does so only once.
  void report_hang();
  // Says to the other nodes what this one does while it does not go on.
  [[nodiscard]] NodeStandstill standstill();
  [[nodiscard]] FaultBoardEntry board_entry();
  [[nodiscard]] WaitRecord user_waits() { return board_entry().waits(CoordinatorThread::kUser); }

  ProcessRole role_;
  RuntimeSettings settings_;                  // the settings that hold for this run
  std::optional<StoreRemains> remains_;       // of the coordinator before this one; taken by start()
  bool handles_restarts_ = false;             // the program has called restarted()
  int wait_timeout_seconds_ = 0;              // as the user has set it; 0: not set
  std::unique_ptr<NodeNetwork> network_;      // of a coordinator; nullptr if there is one node
  std::unique_ptr<NodeAgreement> agreement_;  // the same
  std::optional<NodeHeartbeats> heartbeats_;  // the same
  bool has_agreed_to_stop_ = false;           // all nodes have
  std::shared_ptr<Runtime> runtime_;
  FaultBoard* board_ = nullptr;          // that of rp-launch; if alone, that of this process, for report_hang()
  std::optional<FaultBoard> own_board_;  // used if alone
  std::optional<LivenessWatch> liveness_;
  std::optional<RunTrace> trace_;
  const int num_exceptions_;  // in flight when the session was made
  Lifecycle<kSessionLifecycle> state_;
  std::atomic<bool> hang_reported_{false};
  Mutex send_mutex_;                  // the channel accepts one sender at a time
  std::thread worker_;                // if alone: the only worker
  std::optional<WorkerWatch> watch_;  // with rp-launch: receives from the channel
};

}  // namespace rp
