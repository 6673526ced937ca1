// worker/observers/worker_trace.h
// Records in the trace of the run what a worker does: its tasks, their microbatches, its copies,
// and the waits of its threads.
//
// Owned by the WorkerObservers of a worker whose run is traced.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "device/device.h"
#include "hoststore/catalogue.h"
#include "hoststore/records/fault_board.h"
#include "hoststore/records/trace_journal.h"
#include "worker/observers/worker_observer.h"

namespace rp {

class WorkerTrace final : public WorkerObserver {
 public:
  // All arguments must outlive it. The device's streams must be drained before it is destroyed.
  WorkerTrace(TraceJournal& journal, const Catalogue& catalogue, int worker, Device& device);
  ~WorkerTrace() override;

  // Returns the track of a thread's waits.
  [[nodiscard]] TraceTrack& waits(WorkerThread thread);

  void copy_begun(StreamKind stream) override;
  void weights_piece_enqueued(const Command& command, UseId use, Version version, std::uint64_t bytes) override;
  void input_enqueued(const Command& command, const TaskInput& input, std::span<const std::byte> memory) override;
  void output_enqueued(const Command& command, BlockRow row, int microbatch, std::span<const std::byte> block) override;
  void gradient_piece_enqueued(const Command& command, UseId use, std::uint64_t bytes) override;
  void task_done(const Command& command, std::span<const MicrobatchTime> times) override;

 private:
  struct Tracks;
  const Catalogue& catalogue_;
  const std::unique_ptr<Tracks> tracks_;
};

}  // namespace rp
