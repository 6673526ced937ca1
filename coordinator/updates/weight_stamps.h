// coordinator/updates/weight_stamps.h
// Writes the stamps of the weight groups: which version a working copy holds, and that it is being
// written.
//
// A view of the store, which must outlive it. Without --check-consistency its methods do nothing. A
// thread that writes a working copy calls begin() before and complete() afterwards, before it
// publishes the copy.
#pragma once

#include <cstdint>

#include "hoststore/store.h"

namespace rp {

class WeightStamps {
 public:
  explicit WeightStamps(Store& store) : store_(store) {}

  // Stamps all groups of a pipeline, whose working copies may have been written outside of a step:
  // if a group has two copies, they hold `version` and the one before it. Frozen groups always
  // have version 0. REQUIRES: no task of the pipeline is in flight.
  void stamp_all(std::uint32_t pipeline, Version version);

  // Mark `version` of a group as being written, and as complete.
  void begin(GroupId group, Version version);
  void complete(GroupId group, Version version);

 private:
  [[nodiscard]] WeightStamp& stamp(GroupId group, Version version);

  Store& store_;
};

}  // namespace rp
