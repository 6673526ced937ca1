#include "hoststore/weight_stamp.h"

namespace rp {

void WeightStamp::publish_begin(Version version) {
  // An exchange rather than a store, because bytes that are written afterwards must not become
  // visible before it.
  (void)state_.exchange(2 * version.value() + 1, std::memory_order_seq_cst);
}

void WeightStamp::publish(Version version, std::uint64_t checksum) {
  checksum_.store(checksum, std::memory_order_relaxed);
  state_.store(2 * version.value() + 2, std::memory_order_release);
}

WeightStamp::Contents WeightStamp::observe() const {
  const std::uint64_t state = state_.load(std::memory_order_acquire);
  if (state == 0) return {};
  return {.is_complete = state % 2 == 0,
          .version = Version((state - 1) / 2),
          .checksum = checksum_.load(std::memory_order_relaxed)};
}

}  // namespace rp
