// worker/observers/worker_observers.h
// Owns the observers of a worker that are switched on, and passes each event to all of them: to the
// trace first, so that a copy does not seem to last as long as the check of its bytes.
//
// Owned by the Worker. An event costs a comparison if no observer is switched on. Store, device,
// journal and ranges must outlive it; the device's streams must be drained before it is destroyed.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <vector>

#include "hoststore/records/fault_board.h"
#include "worker/observers/consistency_check.h"
#include "worker/observers/task_ranges.h"
#include "worker/observers/task_report.h"
#include "worker/observers/worker_observer.h"
#include "worker/observers/worker_trace.h"

namespace rp {

class WorkerObservers final : public WorkerObserver {
 public:
  WorkerObservers() = default;  // without observers
  // `board`, `journal` and `ranges` may be missing: what they would show is then not observed.
  // `fail` is called by the consistency check.
  WorkerObservers(Store& store, int worker, Device& device, std::optional<FaultBoardEntry> board, TraceJournal* journal,
                  TaskRanges* ranges, std::function<void(std::exception_ptr)> fail);

  // Returns the record of a thread's waits: on the fault board, if there is one, and in the trace.
  [[nodiscard]] WaitRecord waits(WorkerThread thread);

  void copy_begun(StreamKind stream) override { notify(&WorkerObserver::copy_begun, stream); }
  void command_taken(const Command& command) override { notify(&WorkerObserver::command_taken, command); }
  void weights_published(const Command& command, UseId use, Version version) override {
    notify(&WorkerObserver::weights_published, command, use, version);
  }
  void weights_piece_enqueued(const Command& command, UseId use, Version version, std::uint64_t bytes) override {
    notify(&WorkerObserver::weights_piece_enqueued, command, use, version, bytes);
  }
  void weights_enqueued(const Command& command, UseId use, Version version, const std::byte* memory) override {
    notify(&WorkerObserver::weights_enqueued, command, use, version, memory);
  }
  void input_published(const Command& command, const TaskInput& input) override {
    notify(&WorkerObserver::input_published, command, input);
  }
  void input_enqueued(const Command& command, const TaskInput& input, std::span<const std::byte> memory) override {
    notify(&WorkerObserver::input_enqueued, command, input, memory);
  }
  void runner_idle() override { notify(&WorkerObserver::runner_idle); }
  void task_taken(const Command& command) override { notify(&WorkerObserver::task_taken, command); }
  void inputs_arrived(const Command& command, int microbatch) override {
    notify(&WorkerObserver::inputs_arrived, command, microbatch);
  }
  void task_begun(const Command& command) override { notify(&WorkerObserver::task_begun, command); }
  void task_ended() override { notify(&WorkerObserver::task_ended); }
  void microbatch_begun(int microbatch, bool is_recompute) override {
    notify(&WorkerObserver::microbatch_begun, microbatch, is_recompute);
  }
  void microbatch_ended() override { notify(&WorkerObserver::microbatch_ended); }
  void output_enqueued(const Command& command, BlockRow row, int microbatch,
                       std::span<const std::byte> block) override {
    notify(&WorkerObserver::output_enqueued, command, row, microbatch, block);
  }
  void gradient_piece_enqueued(const Command& command, UseId use, std::uint64_t bytes) override {
    notify(&WorkerObserver::gradient_piece_enqueued, command, use, bytes);
  }
  void gradient_enqueued(const Command& command, UseId use) override {
    notify(&WorkerObserver::gradient_enqueued, command, use);
  }
  void task_done(const Command& command, std::span<const MicrobatchTime> times) override {
    notify(&WorkerObserver::task_done, command, times);
  }

 private:
  template <typename... Parameters, typename... Arguments>
  void notify(void (WorkerObserver::*event)(Parameters...), const Arguments&... arguments) const {
    for (WorkerObserver* observer : on_) (observer->*event)(arguments...);
  }

  std::optional<WorkerTrace> trace_;
  std::optional<TaskReport> report_;
  std::optional<ConsistencyCheck> check_;
  std::vector<WorkerObserver*> on_;  // those above that exist, and the ranges
};

}  // namespace rp
