// worker/copies/bulk_copies.h
// Copies weights or gradients in pieces, so that inputs and outputs on the same link can pass them.
//
// A limited number of pieces is in flight at a time: enough to keep the link busy, but no more,
// because an input or output that is enqueued meanwhile waits for all of them
// (worker/copies/bulk_window.h, docs/design/transfers.md).
//
// Owned by the worker; used by one thread. The stream must outlive it, and must be drained before
// it is destroyed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/system/clock.h"
#include "device/device.h"
#include "hoststore/sequence_word.h"
#include "worker/copies/bulk_window.h"

namespace rp {

class BulkCopies {
 public:
  using Clock = std::int64_t (*)();

  // Copies in one piece if `yields` is false. `clock` returns ns.
  BulkCopies(Stream& stream, bool yields, Clock clock = &now_ns) : stream_(stream), yields_(yields), clock_(clock) {}

  // Enqueues a copy, and returns when its last piece is enqueued. Before a piece that has to wait,
  // calls `wait` with a function that waits (WaitLimits -> WaitResult). If `wait` returns false,
  // copy() returns false with the rest not copied. Each piece is enqueued by `enqueue_piece`, which
  // gets the number of bytes and a function that enqueues the piece. REQUIRES: no earlier copy
  // returned false.
  struct EnqueuePiece {
    void operator()(std::uint64_t, auto enqueue) const { enqueue(); }
  };
  template <typename Wait, typename Enqueue = EnqueuePiece>
  [[nodiscard]] bool copy(std::byte* to, const std::byte* from, std::uint64_t bytes, const Wait& wait,
                          const Enqueue& enqueue_piece = {}) {
    if (!yields_) {
      enqueue_piece(bytes, [&] { stream_.copy(to, from, bytes); });
      return true;
    }
    window_.begin_copy(bytes);
    for (std::uint64_t at = 0; at < bytes;) {
      if (!wait_for_room(wait)) return false;
      const std::uint64_t piece_bytes = window_.next_piece();
      window_.enqueue_next(clock_());
      enqueue_piece(piece_bytes, [&] { stream_.copy(to + at, from + at, piece_bytes); });
      stream_.signal(done_, ++enqueued_);
      at += piece_bytes;
    }
    return true;
  }

  // The length of a long copy's pieces. At most twice as many bytes are in flight.
  [[nodiscard]] std::uint64_t piece_bytes() const { return window_.piece_bytes(); }

  // Wakes the thread that waits for a piece, so that it checks its `stop` flag.
  void wake() const { done_.wake(); }

 private:
  template <typename Wait>
  [[nodiscard]] bool wait_for_room(const Wait& wait) {
    const std::uint64_t num_pieces = window_.done_before_next();
    if (window_.num_done() >= num_pieces) return true;
    const bool is_done = done_.observe() >= num_pieces;
    const auto has_room = [this, num_pieces](const WaitLimits& limits) {
      return done_.wait_at_least(num_pieces, limits);
    };
    if (!is_done && !wait(has_room)) return false;
    window_.see_done(done_.observe(), !is_done, clock_());
    return true;
  }

  Stream& stream_;
  const bool yields_;
  const Clock clock_;
  BulkWindow window_;
  std::uint64_t enqueued_ = 0;  // pieces
  SequenceWord done_{};         // writer: the stream. Number of pieces that are copied
};

}  // namespace rp
