// worker/copies/bulk_window.h
// Decides into which pieces bulk copies are cut and how many of them may be in flight, based on
// what the host measures of the link (docs/design/transfers.md).
//
// When a piece ends, it takes the host some time to enqueue the next one: an event, a host function
// and the wake-up of a thread. This time is the refill. The link stays busy if the pieces in flight
// after the one that ends take at least as long. But an urgent copy waits for everything that is in
// flight. So at most the bytes of two longest pieces are in flight, and a longest piece takes the
// link 1.5 refills. A copy is cut into equal pieces: if they are at least two thirds as long as the
// longest, each covers a refill, and of shorter ones three are in flight. Longer pieces would only
// make urgent copies wait.
//
// The refill is measured from time to time on a piece that has the link to itself
// (worker/copies/refill_estimate.h).
//
// Owned by a BulkCopies and used by its thread. Pure arithmetic: the caller passes the times.
#pragma once

#include <array>
#include <cstdint>

#include "common/run_order.h"
#include "worker/copies/refill_estimate.h"

namespace rp {

class BulkWindow {
 public:
  static constexpr std::uint64_t kMaxPieces = 8;  // in flight, if copies are shorter than a piece

  // The current length of a long copy's pieces. At most twice as many bytes are in flight. It
  // changes only when nothing is in flight.
  [[nodiscard]] std::uint64_t piece_bytes() const { return piece_bytes_; }

  // Begins a copy of this length. REQUIRES: next_piece() == 0.
  void begin_copy(std::uint64_t bytes);

  // Returns the length of the copy's next piece, or 0 if all are enqueued. The pieces of a copy are
  // equal, except those that are measured: a short one between long ones would not cover a refill.
  [[nodiscard]] std::uint64_t next_piece() const;

  // The number of pieces, counted over all copies, that must be seen done before the next one is
  // enqueued; and the number that was seen done so far.
  [[nodiscard]] std::uint64_t done_before_next() const;
  [[nodiscard]] std::uint64_t num_done() const { return num_done_; }

  // Records that the next piece is being enqueued. `now_ns` is a time just before that.
  void enqueue_next(std::int64_t now_ns);

  // Records that the first `num_done` pieces were seen done at `now_ns`. `was_awaited` means that
  // the thread slept until then, so that this is the earliest time at which a host can know about
  // the last of them.
  void see_done(std::uint64_t num_done, bool was_awaited, std::int64_t now_ns);

 private:
  static constexpr std::uint64_t kPiecesBetweenFirst = 8;  // between measured pieces, until the estimate is full
  static constexpr std::uint64_t kPiecesBetween = 256;     // then: costs at most 2 refills in 256 pieces, 0.7 %

  [[nodiscard]] bool measures_next() const;
  [[nodiscard]] std::uint64_t measured_bytes() const;
  [[nodiscard]] std::uint64_t max_bytes_in_flight() const { return kBulkPiecesInFlight * piece_bytes_; }
  void choose_piece();

  std::uint64_t piece_bytes_ = kMinBulkPieceBytes;

  // Pieces. `ends_` contains, for each of the last kMaxPieces pieces, the bytes of all pieces up to
  // and including it, at its number mod kMaxPieces.
  std::uint64_t num_enqueued_ = 0;
  std::uint64_t num_done_ = 0;  // those that were seen done
  std::uint64_t enqueued_bytes_ = 0;
  std::array<std::uint64_t, kMaxPieces> ends_{};

  // The copy that is being enqueued.
  std::uint64_t left_bytes_ = 0;
  bool has_begun_ = false;  // true once one of its pieces was enqueued

  // The piece that has the link to itself. `measured_` is its number, or 0 if there is none.
  std::uint64_t measured_ = 0;
  std::uint64_t measured_piece_bytes_ = 0;
  std::int64_t enqueued_ns_ = 0;

  RefillEstimate refill_;
  std::uint64_t next_measured_ = kPiecesBetweenFirst;  // the next measured piece comes after at least so many pieces
  bool measures_long_ = false;                         // alternates between short and long pieces
};

}  // namespace rp
