// hoststore/weight_stamp.h
// What a working copy of a weight group holds, in a run with --check-consistency. Byte format: docs/formats/control.md.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/shm_safe.h"

namespace rp {

// Lies in the control segment. Writer: the coordinator; a reader verifies with it that a copy is what its command
// names. Its fields are atomic since the protocol may be broken: then it is written while it is read, and that must be
// seen.
class WeightStamp {
 public:
  using ShmFormat = void;
  static constexpr std::uint64_t kMaxCopies = 2;  // of a group: WeightGroupRecord::num_copies

  struct Contents {
    bool is_complete = false;  // false: nothing was ever written, or `version` is being written
    std::uint64_t version = 0;
    std::uint64_t checksum = 0;
    bool operator==(const Contents&) const = default;
  };

  // `version` is being written from now on.
  // SYNC: seq_cst exchange; pairs with observe(): whoever has read a byte that is written afterwards sees it.
  void publish_begin(std::uint64_t version);
  // It is there.
  // SYNC: release; pairs with observe(). The bytes must be written before this.
  void publish(std::uint64_t version, std::uint64_t checksum);

  // SYNC: acquire; pairs with publish() and publish_begin().
  [[nodiscard]] Contents observe() const;

 private:
  std::atomic<std::uint64_t> state_;     // 0 nothing; 2 v + 1: version v is being written; 2 v + 2: it is there
  std::atomic<std::uint64_t> checksum_;  // of the version that is there
};
static_assert(sizeof(WeightStamp) == 16 && ShmSafe<WeightStamp>);

}  // namespace rp
