#include "worker/observers/worker_observers.h"

#include <utility>

namespace rp {

WorkerObservers::WorkerObservers(Store& store, int worker, Device& device, std::optional<FaultBoardEntry> board,
                                 TraceJournal* journal, TaskRanges* ranges,
                                 std::function<void(std::exception_ptr)> fail) {
  if (journal != nullptr) on_.push_back(&trace_.emplace(*journal, store.catalogue(), worker, device));
  if (board) on_.push_back(&report_.emplace(*board));
  if (ranges != nullptr && ranges->is_on()) on_.push_back(ranges);
  if (store.checks_consistency()) on_.push_back(&check_.emplace(store, worker, device, std::move(fail)));
}

WaitRecord WorkerObservers::waits(WorkerThread thread) {
  if (!report_) return {};
  return report_->waits(thread).traced_by(trace_ ? &trace_->waits(thread) : nullptr);
}

}  // namespace rp
