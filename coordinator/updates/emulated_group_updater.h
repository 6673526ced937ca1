// coordinator/updates/emulated_group_updater.h
// Updates that take the time of their bytes over an emulated memory and touch none (docs/design/emulated-device.md).
#pragma once

#include <cstdint>
#include <span>

#include "coordinator/updates/group_updater.h"
#include "hoststore/catalogue.h"

namespace rp {

struct HostMemoryModel {
  double bytes_per_ns = 0;  // of an optimizer pass over all threads, GB/s; 0: passes take no time
};

class EmulatedGroupUpdater : public GroupUpdater {
 public:
  // The catalogue must outlive it.
  EmulatedGroupUpdater(const Catalogue& catalogue, const HostMemoryModel& memory, bool adds_rounds)
      : catalogue_(catalogue), memory_(memory), adds_rounds_(adds_rounds) {}

  void add_to_sum(std::uint32_t use, bool begins) override;
  // 0: nobody knows the gradients.
  [[nodiscard]] double square_sum(std::uint32_t group) override;
  // Throws rp::Error (kUsage): there is nothing to write.
  void write_gradient(std::uint32_t group, const UpdateStep& scaling, float* gradient) override;
  void update(std::uint32_t group, std::uint64_t version, std::span<const UpdateSpan> rules) override;

  // What the passes over a weight group read and write.
  [[nodiscard]] std::uint64_t sum_bytes(std::uint32_t use, bool begins) const;
  [[nodiscard]] std::uint64_t norm_bytes(std::uint32_t group) const;
  [[nodiscard]] std::uint64_t update_bytes(std::uint32_t group, bool skipped) const;

 private:
  // Of the gradient of a group's uses, as the update reads it.
  [[nodiscard]] std::uint64_t gradient_bytes(const WeightGroupRecord& group) const;
  void pass(std::uint64_t bytes) const;

  const Catalogue& catalogue_;
  const HostMemoryModel memory_;
  const bool adds_rounds_;
};

}  // namespace rp
