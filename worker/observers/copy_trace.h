// worker/observers/copy_trace.h
// Records the copies of one stream on its track of the trace, with the times at which the stream
// executes them (docs/design/trace.md).
//
// The stream calls a function before and after each copy. Several threads may enqueue copies on a
// stream that is safe for them. If their copies interleave, a copy is recorded as beginning when
// the copy that ended before it did, so that no two copies of a track overlap.
//
// Owned by the WorkerTrace. Stream, journal and track must outlive it; the stream must be drained
// before it is destroyed.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "device/device.h"
#include "hoststore/records/trace_journal.h"

namespace rp {

class CopyTrace {
 public:
  // One copy, from begin() until the stream has executed it.
  struct Copy {
    std::atomic<bool> is_used{false};
    CopyTrace* owner = nullptr;
    std::int64_t begin_ns = 0;  // writer: the stream
    TraceRecord record;         // writer: the enqueueing thread; then read by the stream
  };

  // `journal` counts the copies that are dropped.
  CopyTrace(Stream& stream, TraceJournal& journal, TraceTrack& track);

  // Called before the copy is enqueued. If kMaxCopies are in flight, drops the copy and returns
  // nullptr.
  [[nodiscard]] Copy* begin();
  // Called after the copy is enqueued, by the same thread. `record` describes the copy, except for
  // its times.
  void end(Copy& copy, const TraceRecord& record);

 private:
  static constexpr std::size_t kMaxCopies = 1024;
  static void begun(void* argument);  // called by the stream, as is ended()
  static void ended(void* argument);

  Stream& stream_;
  TraceJournal& journal_;
  TraceTrack& track_;
  std::int64_t last_end_ns_ = 0;  // used by the stream
  std::atomic<std::uint64_t> num_tried_{0};
  std::array<Copy, kMaxCopies> copies_;
};

}  // namespace rp
