#include "worker/copies/bulk_window.h"

#include <algorithm>

#include "common/check.h"

namespace rp {

namespace {

constexpr std::uint64_t kPage = 4096;

constexpr std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

void BulkWindow::begin_copy(std::uint64_t bytes) {
  RP_ASSERT(left_bytes_ == 0);
  left_bytes_ = bytes;
  has_begun_ = false;
}

// Only a piece that follows another piece of the same copy is measured. Before the first piece, the
// stream may wait for something else, and that time would be counted as the host's.
bool BulkWindow::measures_next() const {
  return measured_ == 0 && num_enqueued_ >= next_measured_ && has_begun_ &&
         left_bytes_ >= (measures_long_ ? piece_bytes_ : piece_bytes_ / 2);
}

// Alternately the largest number of bytes that may be in flight and a small number. The line
// through both is the estimate.
std::uint64_t BulkWindow::measured_bytes() const {
  return std::min(left_bytes_, measures_long_ ? max_bytes_in_flight() : piece_bytes_ / 2);
}

std::uint64_t BulkWindow::next_piece() const {
  if (measures_next()) return measured_bytes();
  const std::uint64_t num_pieces = std::max<std::uint64_t>(1, (left_bytes_ + piece_bytes_ - 1) / piece_bytes_);
  return std::min(left_bytes_, round_up((left_bytes_ + num_pieces - 1) / num_pieces, kPage));
}

std::uint64_t BulkWindow::done_before_next() const {
  if (measured_ != 0 || measures_next()) return num_enqueued_;
  const auto bytes_until = [this](std::uint64_t piece) { return piece == 0 ? 0 : ends_[piece % kMaxPieces]; };
  std::uint64_t done = std::max(num_done_, num_enqueued_ < kMaxPieces ? 0 : num_enqueued_ + 1 - kMaxPieces);
  while (done < num_enqueued_ && enqueued_bytes_ - bytes_until(done) + next_piece() > max_bytes_in_flight()) ++done;
  return done;
}

void BulkWindow::enqueue_next(std::int64_t now_ns) {
  const std::uint64_t bytes = next_piece();
  const bool is_measured = measures_next() && num_done_ == num_enqueued_;
  ++num_enqueued_;
  enqueued_bytes_ += bytes;
  ends_[num_enqueued_ % kMaxPieces] = enqueued_bytes_;
  left_bytes_ -= bytes;
  has_begun_ = true;
  if (!is_measured) return;
  measured_ = num_enqueued_;
  measured_piece_bytes_ = bytes;
  enqueued_ns_ = now_ns;
}

// A piece that was done before the thread looked is no sample. This is always the case if the
// enqueueing thread does the copy itself.
void BulkWindow::see_done(std::uint64_t num_done, bool was_awaited, std::int64_t now_ns) {
  num_done_ = std::max(num_done_, num_done);
  if (measured_ == 0 || num_done < measured_) return;
  if (was_awaited) {
    refill_.add(measured_piece_bytes_, now_ns - enqueued_ns_);
    measures_long_ = !measures_long_;
    choose_piece();
  }
  measured_ = 0;
  next_measured_ =
      num_enqueued_ + (refill_.num_added() < RefillEstimate::kNumSamples ? kPiecesBetweenFirst : kPiecesBetween);
}

void BulkWindow::choose_piece() {
  constexpr std::uint64_t kUnit = std::uint64_t{512} << 10;
  if (const auto bytes = refill_.refill_bytes(kMaxBulkPieceBytes)) {
    piece_bytes_ = std::clamp(round_up(*bytes + *bytes / 2, kUnit), kMinBulkPieceBytes, kMaxBulkPieceBytes);
  }
}

}  // namespace rp
