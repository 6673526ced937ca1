// device/copy_engine.h
// Computes in virtual time how one direction of an emulated link executes copies: when each copy
// has the link, and when operations that follow a copy are due.
//
// Streams queue copies and *marks*: operations that are due when everything before them in their
// stream is done. The link executes one copy at a time. When the link becomes free and several
// streams have a copy waiting, the copy of the first stream goes first, or, without priorities, the
// copy that was enqueued first. A running copy is never interrupted. A copy begins when it is
// enqueued or when the link becomes free, whichever is later, even if the caller looks only after
// that. So the caller's delays do not accumulate.
//
// Pure arithmetic in ns of a clock that the caller reads; `now_ns` must never decrease. Not
// thread-safe.
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
    const std::byte* memory = nullptr;  // device memory
    std::uint64_t bytes = 0;
  };
  struct Mark {
    int stream = 0;
    void* target = nullptr;
    std::uint64_t value = 0;
    void (*function)(void*) = nullptr;
    bool is_early = false;  // due when the copies before it have begun, since their times are fixed then
  };

  // `bytes_per_ns` is the rate of the link; 0 means infinitely fast. `latency_ns`, by stream, is
  // the time that a copy takes in addition to its time on the link; meanwhile, the link can execute
  // other copies. If `first_stream_first` is false, copies are executed in the order in which they
  // were enqueued.
  CopyEngine(double bytes_per_ns, std::vector<std::int64_t> latency_ns, bool first_stream_first = true);

  void enqueue_copy(int stream, const Copy& copy, std::int64_t now_ns);
  void enqueue_mark(const Mark& mark, std::int64_t now_ns);

  // Removes and returns the next mark that is due at `now_ns`. The marks of a stream are returned
  // in their order.
  [[nodiscard]] std::optional<Mark> pop_due(std::int64_t now_ns);
  // Returns a time before which no further mark is due; INT64_MAX if none is queued. An urgent copy
  // may delay the mark.
  [[nodiscard]] std::int64_t next_due_ns() const;

  // Returns the times of the copy that ends last among those from or to this memory that have begun
  // by `now_ns`; zeros if there is none.
  [[nodiscard]] CopyTimes last_copy(const Copy& memory, std::int64_t now_ns);

 private:
  struct Operation {
    bool is_mark = false;
    std::int64_t enqueued_ns = 0;
    std::int64_t link_ns = 0;  // time of a copy on the link
    Copy copy;
    Mark mark;
  };
  struct DueMark {
    std::int64_t due_ns = 0;
    Mark mark;
  };
  struct Queue {
    std::deque<Operation> operations;
    std::deque<DueMark> due;             // all copies before them have fixed times
    std::deque<std::int64_t> mark_sums;  // of the marks in `operations`: what settled_link_ns must reach first
    std::int64_t enqueued_link_ns = 0;   // of all copies enqueued so far
    std::int64_t settled_link_ns = 0;    // of all copies that have begun
    std::int64_t last_link_ns = 0;       // of the last copy enqueued
    std::int64_t start_ns = 0;           // of the last copy that began
    std::int64_t end_ns = 0;
    std::int64_t latency_ns = 0;
  };

  // The last copy from or to a piece of memory.
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
  std::int64_t free_ns_ = 0;  // when the link becomes free
};

}  // namespace rp
