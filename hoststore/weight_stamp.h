// hoststore/weight_stamp.h
// Describes the contents of a working copy of a weight group, in a run with --check-consistency.
// Byte format: docs/formats/control.md.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/shm_safe.h"
#include "hoststore/ids.h"

namespace rp {

// A stamp in the control segment. Writer: the coordinator. Readers use it to verify that a working
// copy contains the version that their command names. The fields are atomic because a run that
// breaks the protocol may write them while they are read, and this must be detected.
class WeightStamp {
 public:
  using ShmFormat = void;
  static constexpr std::uint64_t kMaxCopies = 2;  // per group: WeightGroupRecord::num_copies

  struct Contents {
    bool is_complete = false;  // false: no version was ever written, or `version` is being written
    Version version{};
    std::uint64_t checksum = 0;
    bool operator==(const Contents&) const = default;
  };

  // Marks `version` as being written.
  // SYNC: seq_cst exchange; pairs with observe(): a thread that has read a byte written after this
  // call also sees the mark.
  void publish_begin(Version version);
  // Marks `version` as complete.
  // SYNC: release; pairs with observe(). The bytes must be written before this call.
  void publish(Version version, std::uint64_t checksum);

  // SYNC: acquire; pairs with publish() and publish_begin().
  [[nodiscard]] Contents observe() const;

 private:
  std::atomic<std::uint64_t> state_;  // 0: nothing; 2 v + 1: version v is being written; 2 v + 2: version v is complete
  std::atomic<std::uint64_t> checksum_;  // of the complete version
};
static_assert(sizeof(WeightStamp) == 16 && ShmSafe<WeightStamp>);

}  // namespace rp
