// coordinator/coordinator_state.h
// Holds the state that the caller's thread and the commit thread share: the flow of the rounds, and
// the failure that ends the run.
//
// Owned by the Coordinator. A thread that holds the mutex may use the flow and the rounds in it. It
// calls wake() if other threads may be waiting for its change.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "coordinator/round_flow.h"
#include "hoststore/records/wait_record.h"

namespace rp {

class CoordinatorState {
 public:
  // The arguments are those of RoundFlow.
  CoordinatorState(Store& store, InputBlocks& inputs, const std::vector<std::unique_ptr<PipelineState>>& pipelines,
                   std::optional<FaultBoardEntry> board, OnCommit on_commit, LossExchange* other_nodes)
      : flow(store, inputs, pipelines, board, std::move(on_commit), other_nodes) {}

  Mutex mutex;
  RoundFlow flow RP_GUARDED_BY(mutex);

  // Sleeps until something has changed. `record` shows `wait` until the caller has what it waits
  // for and clears the record.
  void sleep(WaitRecord& record, const Wait& wait) RP_REQUIRES(mutex) {
    record.publish_once(wait);
    changed_.wait(mutex);
  }
  void wake() { changed_.notify_all(); }

  // Ends the run with `error`. The first call counts.
  void fail(std::exception_ptr error) RP_REQUIRES(mutex) {
    if (!error_) error_ = std::move(error);
    wake();
  }
  [[nodiscard]] bool has_failed() const RP_REQUIRES(mutex) { return error_ != nullptr; }
  // Throws the failure that ended the run, if there is one, and marks it as known to the user.
  void check_failure() RP_REQUIRES(mutex) {
    if (!error_) return;
    is_known_ = true;
    std::rethrow_exception(error_);
  }
  // Notes that a call of the user's throws the failure, or has thrown it.
  void set_known() RP_REQUIRES(mutex) { is_known_ = true; }
  [[nodiscard]] bool is_known() const RP_REQUIRES(mutex) { return is_known_; }

 private:
  CondVar changed_;
  std::exception_ptr error_ RP_GUARDED_BY(mutex);
  bool is_known_ RP_GUARDED_BY(mutex) = false;
};

}  // namespace rp
