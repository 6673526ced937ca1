// cuda/registration_queue.h
// Decides which memory a worker registers next with the driver, how much at once, and when it tries
// again what was refused.
//
// The queue neither calls the driver nor reads a clock. Its owner makes the attempts and reports
// their results, with times of now_ns(). Used by one thread.
//
// The driver does not give a reason for a refusal. So a refusal is treated as three kinds, one
// after the other:
// - temporary (pages under migration, another process that registers the same pages): the same
//   bytes are tried again, after pauses that double;
// - too long: half as many bytes are tried, and then half of those; the length that succeeds bounds
//   all further attempts;
// - lasting: the piece is given up until later. From then on each piece is given up at its first
//   refusal, until one is registered. From time to time the piece that was given up and has waited
//   longest is tried again; when it is registered, all others get another chance.
// New pieces are not tried while several refused pieces wait for another attempt. So if the driver
// refuses everything, it is called often for those few pieces and once for each other piece.
#pragma once

#include <cstdint>
#include <list>
#include <optional>

#include "common/indexed.h"
#include "common/system/clock.h"
#include "hoststore/store.h"

namespace rp {

struct RegistrationPolicy {
  // The size of one attempt. With short ones the first tasks begin earlier, and `mmap` in this
  // process is blocked for a shorter time.
  std::uint64_t piece_bytes = std::uint64_t{256} << 20;
  std::uint64_t least_bytes = std::uint64_t{1} << 20;  // a refusal never leads to attempts shorter than this
  int attempts = 6;                                    // with the same bytes, before fewer bytes are tried
  int num_doubtful = 8;              // refused pieces that wait for another attempt until no new ones are tried
  std::int64_t pause_ns = kNsPerMs;  // after the first refusal; doubles with each further one,
  std::int64_t longest_pause_ns = 100 * kNsPerMs;  // up to this
  std::int64_t lock_ns = 2 * kNsPerSecond;         // how long other workers may keep the same bytes locked
  // The pause before a piece that was given up is tried again; doubles with each refusal.
  std::int64_t later_ns = 10 * kNsPerSecond;
  std::int64_t latest_ns = 300 * kNsPerSecond;  // the maximum of that pause
};

class RegistrationQueue {
 public:
  explicit RegistrationQueue(const RegistrationPolicy& policy) : policy_(policy), longest_bytes_(policy.piece_bytes) {}

  // Cuts a region, starting at byte `from`, into pieces of whole pages. A piece ends at the
  // beginning of a layer if there is one within its maximum length.
  void add(const Store::Region& region, std::uint64_t from = 0);

  struct Attempt {
    StorePart part = StorePart::kControl;
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    bool is_read_only = false;
    int fd = -1;               // the file that contains the bytes
    std::uint64_t offset = 0;  // in the file
    bool ignores_locks = false;
  };
  // Returns the attempt that is due and most urgent. REQUIRES: one of the three functions below was
  // called with the result of the previous attempt.
  [[nodiscard]] std::optional<Attempt> next(std::int64_t now_ns);
  // Returns the time at which an attempt will be due; INT64_MAX: never.
  [[nodiscard]] std::int64_t next_ns() const;

  // Reports that the attempt's bytes are registered.
  void succeed();
  void refuse(std::int64_t now_ns);
  // Reports that another worker has locked some of the bytes.
  void postpone(std::int64_t now_ns);

  // Bytes that are not registered yet.
  struct Left {
    std::uint64_t open_bytes = 0;
    std::uint64_t given_up_bytes = 0;
  };
  [[nodiscard]] const Left& left(StorePart part) const { return left_[part]; }
  [[nodiscard]] bool is_empty() const { return pieces_.empty(); }

 private:
  struct Piece {
    Attempt rest;  // the part that is not registered
    int num_refusals = 0;
    std::int64_t due_ns = 0;  // if given up: the time of the last attempt
    std::optional<std::int64_t> locked_since_ns{};
    bool is_given_up = false;
  };

  // Returns true if the piece may be tried when it is due; pieces that were given up have other
  // rules.
  [[nodiscard]] bool is_in_turn(const Piece& piece, bool takes_new_ones) const {
    return !piece.is_given_up && (takes_new_ones || piece.num_refusals > 0);
  }
  [[nodiscard]] bool takes_new_ones() const;
  [[nodiscard]] std::uint64_t attempt_bytes(const Piece& piece) const;
  [[nodiscard]] std::int64_t pause_ns(int num_refusals) const;
  void give_up(Piece& piece, std::int64_t now_ns);
  void give_all_another_chance();
  [[nodiscard]] Left& left_of(const Piece& piece) { return left_[piece.rest.part]; }

  const RegistrationPolicy policy_;
  std::uint64_t longest_bytes_;  // the maximum that the driver accepts at once, if known
  std::list<Piece> pieces_;      // in order of urgency
  std::list<Piece>::iterator attempted_{};
  bool is_refusing_ = false;           // a piece was given up, and none was registered since
  std::int64_t later_ns_ = INT64_MAX;  // when a piece that was given up is tried again
  std::int64_t later_pause_ns_ = 0;
  IndexedArray<StorePart, Left, kNumStoreParts> left_{};
};

}  // namespace rp
