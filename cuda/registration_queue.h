// cuda/registration_queue.h
// Decides what a worker registers next with the driver, how much of it at once, and when it tries again what was
// refused.
//
// It calls no driver and reads no clock: its owner makes the attempts and says what became of them, with times of
// now_ns(). For one thread.
//
// The driver does not say why it refuses. So a refusal is taken for each of three kinds in turn:
//  - one that passes (pages under migration, another process that registers the same ones): the same bytes are tried
//  again, after
//    pauses that double;
//  - one of length: half as many bytes are tried, and half of those; the length that worked then bounds every further
//  attempt;
//  - one that stays: the piece is given up until later. From then on a piece is given up at its first refusal, until
//  another one is
//    registered. From time to time one piece that was given up is tried again, the one that waited longest. When it is
//    registered, all others get another chance.
// New pieces are not tried while several that were refused wait for another attempt. So a driver that refuses
// everything is asked often for those few, and once for each other piece.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <optional>

#include "common/system/clock.h"
#include "hoststore/store.h"

namespace rp {

struct RegistrationPolicy {
  // Of one attempt. Short ones let the first tasks begin, and hold up `mmap` in this process for a shorter time.
  std::uint64_t piece_bytes = std::uint64_t{256} << 20;
  std::uint64_t least_bytes = std::uint64_t{1} << 20;  // nothing shorter is tried for the sake of its length
  int attempts = 6;                                    // at the same bytes, before fewer are tried
  int num_doubtful = 8;                            // pieces that wait for another attempt before no new ones are tried
  std::int64_t pause_ns = kNsPerMs;                // after the first refusal; twice as long after each further one,
  std::int64_t longest_pause_ns = 100 * kNsPerMs;  // up to this
  std::int64_t lock_ns = 2 * kNsPerSecond;         // how long other workers may keep the same bytes locked
  std::int64_t later_ns =
      10 * kNsPerSecond;  // until a piece that was given up is tried; doubles each time it is refused,
  std::int64_t latest_ns = 300 * kNsPerSecond;  // up to this
};

class RegistrationQueue {
 public:
  explicit RegistrationQueue(const RegistrationPolicy& policy) : policy_(policy), longest_bytes_(policy.piece_bytes) {}

  // Cuts a region, from byte `from` on, into pieces of whole pages. A piece ends where a layer begins, if one does
  // within it.
  void add(const Store::Region& region, std::uint64_t from = 0);

  struct Attempt {
    StorePart part = StorePart::kControl;
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    bool is_read_only = false;
    int fd = -1;               // the file that the bytes are of,
    std::uint64_t offset = 0;  // and where in it
    bool ignores_locks = false;
  };
  // What is due, the most urgent first. REQUIRES: the attempt before it was answered by one of the three functions
  // below.
  [[nodiscard]] std::optional<Attempt> next(std::int64_t now_ns);
  // When something will be due; INT64_MAX: never.
  [[nodiscard]] std::int64_t next_ns() const;

  // The attempt's bytes are registered.
  void succeed();
  void refuse(std::int64_t now_ns);
  // Another worker has locked some of the bytes.
  void postpone(std::int64_t now_ns);

  // Not registered yet, by what is known of it.
  struct Left {
    std::uint64_t open_bytes = 0;
    std::uint64_t given_up_bytes = 0;
  };
  [[nodiscard]] const Left& left(StorePart part) const { return left_[static_cast<std::size_t>(part)]; }
  [[nodiscard]] bool is_empty() const { return pieces_.empty(); }

 private:
  struct Piece {
    Attempt rest;  // what of it is not registered
    int num_refusals = 0;
    std::int64_t due_ns = 0;  // given up: when it was tried last
    std::optional<std::int64_t> locked_since_ns{};
    bool is_given_up = false;
  };

  // May be tried once it is due, without having been given up.
  [[nodiscard]] bool is_in_turn(const Piece& piece, bool takes_new_ones) const {
    return !piece.is_given_up && (takes_new_ones || piece.num_refusals > 0);
  }
  [[nodiscard]] bool takes_new_ones() const;
  [[nodiscard]] std::uint64_t attempt_bytes(const Piece& piece) const;
  [[nodiscard]] std::int64_t pause_ns(int num_refusals) const;
  void give_up(Piece& piece, std::int64_t now_ns);
  void give_all_another_chance();
  [[nodiscard]] Left& left_of(const Piece& piece) { return left_[static_cast<std::size_t>(piece.rest.part)]; }

  const RegistrationPolicy policy_;
  std::uint64_t longest_bytes_;  // that the driver takes at once, as far as is known
  std::list<Piece> pieces_;      // in the order of their urgency
  std::list<Piece>::iterator attempted_{};
  bool is_refusing_ = false;           // a piece was given up, and none was registered since
  std::int64_t later_ns_ = INT64_MAX;  // when a piece that was given up is tried again
  std::int64_t later_pause_ns_ = 0;
  std::array<Left, kNumStoreParts> left_{};
};

}  // namespace rp
