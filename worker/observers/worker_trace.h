// worker/observers/worker_trace.h
// Records in the trace of the run what a worker does: its tasks, their microbatches, its copies,
// and the waits of its threads.
//
// Owned by the Worker. Without a journal the methods do nothing. Each method is named after what it
// records. A copy is what is enqueued between begin_copy() and the method that gets its result.
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
  // Journal and device must outlive it. The device's streams must be drained before it is
  // destroyed.
  WorkerTrace(TraceJournal* journal, int worker, Device& device);
  ~WorkerTrace();
  WorkerTrace(const WorkerTrace&) = delete;
  WorkerTrace& operator=(const WorkerTrace&) = delete;

  // Returns nullptr without a journal, or if too many copies are in flight.
  [[nodiscard]] CopyTrace::Copy* begin_copy(StreamKind stream);
  // Returns nullptr without a journal.
  [[nodiscard]] TraceTrack* waits(WorkerThread thread);

  // Called by the gradient download stream, for the gradient downloader: for the microbatches of a
  // task in their order, and then for the task.
  void microbatch(const Command& command, const MicrobatchTime& time);
  void task(const Command& command, std::int64_t begin_ns, std::int64_t end_ns);
  // Called by the stage runner.
  void output(CopyTrace::Copy* copy, const Command& command, BlockRow row, int microbatch, std::uint64_t bytes);
  // Called by the weight uploader for a piece of a weight group.
  void weights(CopyTrace::Copy* copy, const Command& command, const UseRecord& use, std::uint64_t version,
               std::uint64_t bytes);
  // Called by the input uploader. `row` is the row under which the task reads the block, `made_as`
  // the row in the table of the round that made it.
  void input(CopyTrace::Copy* copy, const Command& command, BlockRow row, BlockRow made_as, int microbatch,
             const BlockPlace& place);
  // Called by the gradient downloader for a piece of a gradient.
  void gradient(CopyTrace::Copy* copy, const Command& command, const UseRecord& use, std::uint64_t bytes);

 private:
  struct Tracks;
  std::unique_ptr<Tracks> tracks_;
};

}  // namespace rp
