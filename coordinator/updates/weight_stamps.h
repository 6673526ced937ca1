// coordinator/updates/weight_stamps.h
// The stamps of the weight groups as their writer sees them: what a working copy holds, and that it is being written.
//
// A view of the store, which must outlive it; without --check-consistency its methods do nothing. Used by whoever
// writes a working copy, before and after, and before he publishes it.
#pragma once

#include <cstdint>

#include "hoststore/store.h"

namespace rp {

class WeightStamps {
 public:
  explicit WeightStamps(Store& store) : store_(store) {}

  // The working copies of all groups of a pipeline may have been written from outside of a step: where a group has two,
  // they hold `version` and the one before. Frozen groups are version 0 for good. REQUIRES: no task of the pipeline is
  // in flight.
  void stamp_all(std::uint32_t pipeline, std::uint64_t version);

  // `version` of a group is about to be written; it is there.
  void begin(std::uint32_t group, std::uint64_t version);
  void complete(std::uint32_t group, std::uint64_t version);

 private:
  [[nodiscard]] WeightStamp& stamp(std::uint32_t group, std::uint64_t version);

  Store& store_;
};

}  // namespace rp
