// coordinator/updates/group_updater.h
// What a step does to one weight group in the host store: sums and norms of its gradients, and the update. When that
// may be is for Updates to say, which owns one and uses it in one thread.
#pragma once

#include <cstdint>
#include <span>

#include "optimizer/update.h"

namespace rp {

class GroupUpdater {
 public:
  virtual ~GroupUpdater() = default;

  // The sum of a use begins with its gradient, or goes on with it. REQUIRES: the gradients of several rounds are added.
  virtual void add_to_sum(std::uint32_t use, bool begins) = 0;

  // Of the group's gradient, over all of its uses.
  [[nodiscard]] virtual double square_sum(std::uint32_t group) = 0;

  // The group's gradient as fp32, scaled and clipped as `scaling` says.
  virtual void write_gradient(std::uint32_t group, const UpdateStep& scaling, float* gradient) = 0;

  // Makes `version` of the group from the version before; without rules: as the same weights. REQUIRES: fp32 masters.
  virtual void update(std::uint32_t group, std::uint64_t version, std::span<const UpdateSpan> rules) = 0;
};

}  // namespace rp
