// device/copy_engine.h
// One direction of an emulated link, in virtual time: which copy has the link when, and when what follows a copy is
// due.
//
// Streams queue copies and *marks*, things that happen when everything before them in their stream is done. The link
// does one copy at a time. Where several streams have one waiting when it becomes free, the first stream goes first, or
// else what was enqueued first; a copy that runs is finished. Copies begin when they are enqueued or when the link
// becomes free, whatever is later: the caller's own delays are never part of a queue's time.
//
// Pure arithmetic in ns of a clock that the caller reads: `now` never goes back. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

namespace rp {

struct CopyTimes {
  std::int64_t enqueued_ns = 0;
  std::int64_t end_ns = 0;
};

class CopyEngine {
 public:
  struct Copy {
    const std::byte* memory = nullptr;  // of the device
    std::uint64_t bytes = 0;
  };
  struct Mark {
    int stream = 0;
    void* target = nullptr;
    std::uint64_t value = 0;
    void (*function)(void*) = nullptr;
    bool is_early = false;  // due when the copies before it have begun: their times are settled then
  };

  // `bytes_per_ns`: of the link; 0: infinitely fast. `latency_ns`: by stream; what a copy takes beyond its time on the
  // link, which goes on meanwhile. `first_stream_first`: else copies go in the order of their enqueueing.
  CopyEngine(double bytes_per_ns, std::vector<std::int64_t> latency_ns, bool first_stream_first = true);

  void enqueue_copy(int stream, const Copy& copy, std::int64_t now_ns);
  void enqueue_mark(const Mark& mark, std::int64_t now_ns);

  // The next mark that is due by now: those of a stream in their order.
  [[nodiscard]] std::optional<Mark> pop_due(std::int64_t now_ns);
  // No mark that is not due yet is due before; INT64_MAX: none is queued. An urgent copy may push it back later.
  [[nodiscard]] std::int64_t next_due_ns() const;

  // Of the copies from or to this memory that began by now, the one that ends last; zeros if there is none.
  [[nodiscard]] CopyTimes last_copy(const Copy& memory, std::int64_t now_ns);

 private:
  struct Operation {
    bool is_mark = false;
    std::int64_t enqueued_ns = 0;
    std::int64_t link_ns = 0;  // a copy's
    Copy copy;
    Mark mark;
  };
  struct DueMark {
    std::int64_t due_ns = 0;
    Mark mark;
  };
  struct Queue {
    std::deque<Operation> operations;
    std::deque<DueMark> due;             // all copies before them are settled
    std::deque<std::int64_t> mark_sums;  // of the marks in `operations`: settled_link_ns that must have passed before
    std::int64_t enqueued_link_ns = 0;   // of all copies ever
    std::int64_t settled_link_ns = 0;    // of those that began
    std::int64_t last_link_ns = 0;       // of the last copy enqueued
    std::int64_t start_ns = 0;           // of the last copy that began
    std::int64_t end_ns = 0;
    std::int64_t latency_ns = 0;
  };

  // Of the last copy over a piece of memory.
  struct Touched {
    std::uint64_t bytes = 0;
    CopyTimes times;
  };

  void settle(std::int64_t now_ns);
  void touch(const Copy& copy, const CopyTimes& times);
  static void take_marks(Queue& queue);

  const double bytes_per_ns_;
  const bool first_stream_first_;
  std::vector<Queue> queues_;  // by stream
  std::map<const std::byte*, Touched> touched_;
  std::int64_t free_ns_ = 0;  // the link
};

}  // namespace rp
