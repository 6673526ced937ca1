// worker/observers/worker_trace.h
// What a worker puts into the run's trace: its tasks, their microbatches, its copies, its threads' waits.
//
// Owned by the Worker. Without a journal all does nothing. Methods are named after what they record. A copy is what is
// enqueued between begin_copy() and the method that gets its result; the others end with the call.
#pragma once

#include <cstdint>
#include <memory>

#include "device/device.h"
#include "hoststore/records/fault_board.h"
#include "hoststore/records/trace_journal.h"
#include "hoststore/store.h"
#include "hoststore/task_rows.h"
#include "worker/executor/stage_executor.h"
#include "worker/observers/copy_trace.h"

namespace rp {

class WorkerTrace {
 public:
  WorkerTrace();  // without a journal
  // Journal and device must outlive it; the device's streams must be drained before it is destroyed.
  WorkerTrace(TraceJournal* journal, int worker, Device& device);
  ~WorkerTrace();
  WorkerTrace(const WorkerTrace&) = delete;
  WorkerTrace& operator=(const WorkerTrace&) = delete;

  // nullptr without a journal, or if too many are under way.
  [[nodiscard]] CopyTrace::Copy* begin_copy(StreamKind stream);
  // nullptr without a journal.
  [[nodiscard]] TraceTrack* waits(WorkerThread thread);

  // GradientDownloader, by the download stream: the microbatches of a task in their order, and then the task.
  void microbatch(const Command& command, const MicrobatchTime& time);
  void task(const Command& command, std::int64_t begin_ns, std::int64_t end_ns);
  // Stage runner.
  void output(CopyTrace::Copy* copy, const Command& command, BlockRow row, int microbatch, std::uint64_t bytes);
  // WeightUploader: a piece of a weight group.
  void weights(CopyTrace::Copy* copy, const Command& command, const UseRecord& use, std::uint64_t version,
               std::uint64_t bytes);
  // InputUploader. `row`: what the task takes the block for; `made_as`: in the round that made it.
  void input(CopyTrace::Copy* copy, const Command& command, BlockRow row, BlockRow made_as, int microbatch,
             const BlockPlace& place);
  // GradientDownloader: a piece of a gradient.
  void gradient(CopyTrace::Copy* copy, const Command& command, const UseRecord& use, std::uint64_t bytes);

 private:
  struct Tracks;
  std::unique_ptr<Tracks> tracks_;
};

}  // namespace rp
