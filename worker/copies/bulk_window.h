// worker/copies/bulk_window.h
// Decides into which pieces bulk copies are cut and how many of them may be under way, by what the host measures of the
// link (docs/design/transfers.md).
//
// A link stays busy while the host refills it if what is under way behind the piece that ends takes at least as long as
// the refill: the time from a piece's end (an event, a host function, a sleeping thread) until the next one is in the
// link's queue. An urgent copy waits for everything that is under way. So two pieces' bytes are under way at most, and
// the longest piece takes the link 1.5 refills: a copy cut into equal pieces then has none that takes less than a
// refill (two thirds of the longest; of shorter ones three are under way), longer ones would only make urgent copies
// wait.
//
// What a refill takes is measured now and then on a piece that has the link to itself
// (worker/copies/refill_estimate.h).
//
// Owned by a BulkCopies, for its thread. Pure arithmetic: times are given to it.
#pragma once

#include <array>
#include <cstdint>

#include "worker/copies/refill_estimate.h"

namespace rp {

class BulkWindow {
 public:
  // The driver is called four times for a piece. The largest ones are what 64 GB/s and a refill of 200 us need, and
  // bound what an urgent copy waits for where a refill was measured too long.
  static constexpr std::uint64_t kMinPieceBytes = std::uint64_t{4} << 20;
  static constexpr std::uint64_t kMaxPieceBytes = std::uint64_t{20} << 20;
  static constexpr std::uint64_t kMaxPieces = 8;  // under way, where copies are shorter than a piece

  // Of a long copy's pieces, now: at most twice as many bytes are under way. It changes when nothing is under way.
  [[nodiscard]] std::uint64_t piece_bytes() const { return piece_bytes_; }

  // A copy of so many bytes begins. REQUIRES: next_piece() == 0.
  void begin_copy(std::uint64_t bytes);

  // Bytes of the copy's next piece; 0: all are enqueued. The pieces of a copy are equal but for those that are
  // measured: a short one between long ones would not cover a refill.
  [[nodiscard]] std::uint64_t next_piece() const;

  // How many pieces of all so far must be seen done before the next one is enqueued, and how many are.
  [[nodiscard]] std::uint64_t done_before_next() const;
  [[nodiscard]] std::uint64_t num_done() const { return num_done_; }

  // The next piece is enqueued. `now_ns`: before that.
  void enqueue_next(std::int64_t now_ns);

  // So many pieces were seen done at this time. `was_awaited`: the thread slept until then, so that the time is when a
  // host can know of the last one.
  void see_done(std::uint64_t num_done, bool was_awaited, std::int64_t now_ns);

 private:
  static constexpr std::uint64_t kPiecesBetweenFirst = 8;  // measured ones, until the estimate is full
  static constexpr std::uint64_t kPiecesBetween = 256;  // then: two refills' time of 256 pieces is lost at most, 0.7 %

  [[nodiscard]] bool measures_next() const;
  [[nodiscard]] std::uint64_t measured_bytes() const;
  void choose_piece();

  std::uint64_t piece_bytes_ = kMinPieceBytes;

  // Pieces. Of the last kMaxPieces: bytes of all pieces up to it, by its number.
  std::uint64_t num_enqueued_ = 0;
  std::uint64_t num_done_ = 0;  // as far as seen
  std::uint64_t enqueued_bytes_ = 0;
  std::array<std::uint64_t, kMaxPieces> ends_{};

  // Of the copy that is enqueued.
  std::uint64_t left_bytes_ = 0;
  bool has_begun_ = false;  // one of its pieces was enqueued

  // The piece that has the link to itself. `measured_` is its number, 0: there is none.
  std::uint64_t measured_ = 0;
  std::uint64_t measured_piece_bytes_ = 0;
  std::int64_t enqueued_ns_ = 0;

  RefillEstimate refill_;
  std::uint64_t next_measured_ = kPiecesBetweenFirst;  // not before so many pieces are enqueued
  bool measures_long_ = false;                         // short and long ones in turn
};

}  // namespace rp
