// coordinator/updates/emulated_group_updater.h
// Takes the time that updates need for their bytes in an emulated memory, without touching any data
// (docs/design/emulated-device.md).
#pragma once

#include <cstdint>
#include <span>

#include "coordinator/updates/group_updater.h"
#include "hoststore/catalogue.h"

namespace rp {

struct HostMemoryModel {
  double bytes_per_ns = 0;  // bandwidth (GB/s) of an optimizer pass by all threads; 0: passes take no time
};

class EmulatedGroupUpdater : public GroupUpdater {
 public:
  // The catalogue must outlive it.
  EmulatedGroupUpdater(const Catalogue& catalogue, const HostMemoryModel& memory, bool adds_rounds)
      : catalogue_(catalogue), memory_(memory), adds_rounds_(adds_rounds) {}

  void add_to_sum(const GradientPart& part, bool begins) override;
  // Writes zeros, since no gradients exist.
  void sum_squares(GroupId group, std::span<double> chunks) override;
  // Throws rp::Error (kUsage), since there is nothing to write.
  void write_gradient(GroupId group, const UpdateStep& scaling, float* gradient) override;
  void update(GroupId group, Version version, std::span<const UpdateSpan> rules) override;

  // Return the number of bytes that each kind of pass over a weight group, or what this node owns of it, reads and
  // writes.
  [[nodiscard]] std::uint64_t sum_bytes(const GradientPart& part, bool begins) const;
  [[nodiscard]] std::uint64_t norm_bytes(GroupId group) const;
  [[nodiscard]] std::uint64_t update_bytes(GroupId group, bool skipped) const {
    return update_bytes(group, catalogue_.owned(group).size(), skipped);
  }
  [[nodiscard]] std::uint64_t update_bytes(GroupId index, std::uint64_t num_elements, bool skipped) const;

 private:
  // Returns the bytes of so many elements of the gradients of all uses of a group, as the update reads them.
  [[nodiscard]] std::uint64_t gradient_bytes(GroupId index, std::uint64_t num_elements) const;
  void pass(std::uint64_t bytes) const;

  const Catalogue& catalogue_;
  const HostMemoryModel memory_;
  const bool adds_rounds_;
};

// Returns a maker of such updaters, for CoordinatorOptions.
[[nodiscard]] GroupUpdaterMaker emulated_updaters(const HostMemoryModel& memory);

}  // namespace rp
