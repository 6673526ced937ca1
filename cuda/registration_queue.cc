#include "cuda/registration_queue.h"

#include <unistd.h>

#include <algorithm>

#include "hoststore/boundary.h"

namespace rp {

namespace {

std::uint64_t page_bytes() { return static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)); }

// Returns the end of a piece that begins at `begin` and has at most `piece_bytes` bytes.
std::uint64_t end_of_piece(const Store::Region& region, std::uint64_t begin, std::uint64_t piece_bytes) {
  const std::uint64_t page = page_bytes();
  if (region.bytes - begin <= piece_bytes) return align_up(region.bytes, page);
  const std::uint64_t end = begin + piece_bytes;
  // The last layer that begins before `end`. Its beginning may be inside a page.
  const auto cut = std::upper_bound(region.cuts.begin(), region.cuts.end(), end);
  const std::uint64_t layer = cut == region.cuts.begin() ? 0 : *std::prev(cut) / page * page;
  return layer > begin ? layer : end / page * page;
}

}  // namespace

void RegistrationQueue::add(const Store::Region& region, std::uint64_t from) {
  const auto place =
      std::find_if(pieces_.begin(), pieces_.end(), [&](const Piece& piece) { return piece.rest.part > region.part; });
  for (std::uint64_t at = from; at < region.bytes;) {
    const std::uint64_t end = end_of_piece(region, at, longest_bytes_);
    pieces_.insert(place, {.rest = {.part = region.part,
                                    .data = region.data + at,
                                    .bytes = end - at,
                                    .is_read_only = region.is_read_only,
                                    .fd = region.fd,
                                    .offset = at}});
    left_[region.part].open_bytes += end - at;
    at = end;
  }
}

std::uint64_t RegistrationQueue::attempt_bytes(const Piece& piece) const {
  const std::uint64_t whole = std::min(piece.rest.bytes, longest_bytes_);
  const int num_halvings = std::max(0, piece.num_refusals - policy_.attempts + 1);
  const std::uint64_t least = std::min(whole, policy_.least_bytes);
  return std::max(least, (whole >> std::min(num_halvings, 63)) / page_bytes() * page_bytes());
}

std::int64_t RegistrationQueue::pause_ns(int num_refusals) const {
  return std::min(policy_.longest_pause_ns, policy_.pause_ns << std::min(num_refusals - 1, 20));
}

bool RegistrationQueue::takes_new_ones() const {
  return std::count_if(pieces_.begin(), pieces_.end(), [](const Piece& piece) { return piece.num_refusals > 0; }) <
         policy_.num_doubtful;
}

std::optional<RegistrationQueue::Attempt> RegistrationQueue::next(std::int64_t now_ns) {
  const bool with_new_ones = takes_new_ones();
  attempted_ = std::find_if(pieces_.begin(), pieces_.end(), [&](const Piece& piece) {
    return is_in_turn(piece, with_new_ones) && piece.due_ns <= now_ns;
  });
  if (attempted_ == pieces_.end()) {
    if (now_ns < later_ns_) return std::nullopt;
    attempted_ = std::min_element(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
      return std::pair(!a.is_given_up, a.due_ns) < std::pair(!b.is_given_up, b.due_ns);
    });
  }
  Attempt attempt = attempted_->rest;
  attempt.bytes = attempt_bytes(*attempted_);
  attempt.ignores_locks = attempted_->locked_since_ns && now_ns - *attempted_->locked_since_ns >= policy_.lock_ns;
  return attempt;
}

std::int64_t RegistrationQueue::next_ns() const {
  const bool with_new_ones = takes_new_ones();
  std::int64_t first = later_ns_;
  for (const Piece& piece : pieces_) {
    if (is_in_turn(piece, with_new_ones)) first = std::min(first, piece.due_ns);
  }
  return first;
}

void RegistrationQueue::succeed() {
  Piece& piece = *attempted_;
  const std::uint64_t bytes = attempt_bytes(piece);
  if (bytes < std::min(piece.rest.bytes, longest_bytes_)) longest_bytes_ = bytes;
  is_refusing_ = false;
  if (piece.is_given_up) give_all_another_chance();
  left_of(piece).open_bytes -= bytes;
  if (bytes == piece.rest.bytes) {
    pieces_.erase(attempted_);
    return;
  }
  piece.rest.data += bytes;
  piece.rest.offset += bytes;
  piece.rest.bytes -= bytes;
  piece = {.rest = piece.rest};
}

void RegistrationQueue::refuse(std::int64_t now_ns) {
  Piece& piece = *attempted_;
  piece.locked_since_ns.reset();
  if (piece.is_given_up) {
    piece.due_ns = now_ns;
    later_pause_ns_ = std::min(policy_.latest_ns, 2 * later_pause_ns_);
    later_ns_ = now_ns + later_pause_ns_;
    return;
  }
  const bool was_shortest = attempt_bytes(piece) <= policy_.least_bytes;
  ++piece.num_refusals;
  if (is_refusing_ || (was_shortest && piece.num_refusals >= policy_.attempts)) return give_up(piece, now_ns);
  piece.due_ns = now_ns + pause_ns(piece.num_refusals);
}

void RegistrationQueue::postpone(std::int64_t now_ns) {
  Piece& piece = *attempted_;
  if (!piece.locked_since_ns) piece.locked_since_ns = now_ns;
  (piece.is_given_up ? later_ns_ : piece.due_ns) = now_ns + policy_.pause_ns;
}

void RegistrationQueue::give_up(Piece& piece, std::int64_t now_ns) {
  left_of(piece).open_bytes -= piece.rest.bytes;
  left_of(piece).given_up_bytes += piece.rest.bytes;
  piece = {.rest = piece.rest, .due_ns = now_ns, .is_given_up = true};
  is_refusing_ = true;
  if (later_ns_ != INT64_MAX) return;
  later_pause_ns_ = policy_.later_ns;
  later_ns_ = now_ns + later_pause_ns_;
}

void RegistrationQueue::give_all_another_chance() {
  for (Piece& piece : pieces_) {
    if (!piece.is_given_up) continue;
    left_of(piece).open_bytes += piece.rest.bytes;
    left_of(piece).given_up_bytes -= piece.rest.bytes;
    piece = {.rest = piece.rest};
  }
  later_ns_ = INT64_MAX;
}

}  // namespace rp
