// worker/bulk_copies.h
// Copies of weights or gradients, which give way to inputs and outputs on the same link: in pieces, of which few are under way
// at once, so what is enqueued meanwhile waits for these only (docs/design/transfers.md).
//
// Owned by the worker; used by one thread. The stream must outlive it, and be drained before it ends.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "hoststore/sequence_word.h"

namespace rp {

class BulkCopies {
 public:
  static constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;
  static constexpr std::uint64_t kUnderWay = 2;  // pieces: one is copied, the next one keeps the link busy after it

  // Without `gives_way` all pieces are enqueued at once.
  BulkCopies(Stream& stream, bool gives_way) : stream_(stream), gives_way_(gives_way) {}

  // Enqueues a copy; returns when its last piece is enqueued. Before a piece that has to wait, calls `wait` with a function
  // that waits (WaitLimits -> WaitResult); false, with the rest not copied, if that returns false. Has each piece enqueued by
  // `enqueue_piece`, which gets its bytes and a function that does it.
  struct EnqueuePiece {
    void operator()(std::uint64_t, auto enqueue) const { enqueue(); }
  };
  template <typename Wait, typename Enqueue = EnqueuePiece>
  [[nodiscard]] bool copy(std::byte* to, const std::byte* from, std::uint64_t bytes, const Wait& wait,
                          const Enqueue& enqueue_piece = {}) {
    for (std::uint64_t at = 0; at < bytes; at += kPieceBytes) {
      const auto has_room = [this](const WaitLimits& limits) { return done_.wait_at_least(enqueued_ + 1 - kUnderWay, limits); };
      if (gives_way_ && enqueued_ >= kUnderWay && !wait(has_room)) return false;
      const std::uint64_t piece_bytes = std::min(kPieceBytes, bytes - at);
      enqueue_piece(piece_bytes, [&] { stream_.copy(to + at, from + at, piece_bytes); });
      ++enqueued_;
      if (gives_way_) stream_.signal(done_, enqueued_);
    }
    return true;
  }

  // Wakes the thread that waits for a piece, so that it looks at its `stop`.
  void wake() const { done_.wake(); }

 private:
  Stream& stream_;
  const bool gives_way_;
  std::uint64_t enqueued_ = 0;  // pieces
  SequenceWord done_{};         // writer: the stream. Pieces that are copied
};

}  // namespace rp
