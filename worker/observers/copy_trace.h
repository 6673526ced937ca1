// worker/observers/copy_trace.h
// The copies of one stream on its track of the trace, timed where the stream executes them (docs/design/trace.md).
//
// A copy lies between two calls that the stream makes in its order. Several threads may enqueue: where their copies
// interleave, a copy begins when the one that ended before it did, so that no two of a track overlap.
//
// Owned by the WorkerTrace. Stream, journal and track must outlive it; the stream must be drained before it is
// destroyed.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "device/device.h"
#include "hoststore/records/trace_journal.h"

namespace rp {

class CopyTrace {
 public:
  // One copy, from begin() until the stream has done it.
  struct Copy {
    std::atomic<bool> is_used{false};
    CopyTrace* owner = nullptr;
    std::int64_t begin_ns = 0;  // the stream's
    TraceRecord record;         // the enqueuing thread's, then the stream's
  };

  // `journal` counts what is dropped.
  CopyTrace(Stream& stream, TraceJournal& journal, TraceTrack& track);

  // Before the copy is enqueued. nullptr, and the copy is dropped, if kMaxCopies are under way.
  [[nodiscard]] Copy* begin();
  // After it, by the same thread: what it was, but for its times.
  void end(Copy& copy, const TraceRecord& record);

 private:
  static constexpr std::size_t kMaxCopies = 1024;
  static void begun(void* copy);  // the stream's, as the next one
  static void ended(void* copy);

  Stream& stream_;
  TraceJournal& journal_;
  TraceTrack& track_;
  std::int64_t last_end_ns_ = 0;  // the stream's
  std::atomic<std::uint64_t> num_tried_{0};
  std::array<Copy, kMaxCopies> copies_;
};

}  // namespace rp
