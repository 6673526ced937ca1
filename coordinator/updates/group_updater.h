// coordinator/updates/group_updater.h
// Performs the passes of a step over one weight group in the host store: sums and norms of
// gradients, and the update. Updates owns one, uses it in one thread, and decides when each pass
// may run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "hoststore/catalogue.h"
#include "optimizer/update.h"

namespace rp {

class GroupUpdater {
 public:
  virtual ~GroupUpdater() = default;

  // Adds the gradient of a use to its sum, or begins the sum with it. REQUIRES: the gradients of
  // several rounds are added.
  virtual void add_to_sum(UseId use, bool begins) = 0;

  // Returns the sum of squares of the group's gradient, which is the sum over all of its uses.
  [[nodiscard]] virtual double square_sum(GroupId group) = 0;

  // Writes the group's gradient as fp32, scaled and clipped according to `scaling`.
  virtual void write_gradient(GroupId group, const UpdateStep& scaling, float* gradient) = 0;

  // Makes `version` of the group from the version before it; if there are no rules, with the same
  // weights. REQUIRES: fp32 masters.
  virtual void update(GroupId group, Version version, std::span<const UpdateSpan> rules) = 0;

  // Returns the group whose update to `version` a process that has died may have left unfinished. Then update() of that
  // group, with the same rules, finishes it, and must come first.
  [[nodiscard]] virtual std::optional<GroupId> unfinished(Version) const { return std::nullopt; }
};

// Makes a GroupUpdater for a catalogue, which outlives it. `adds_rounds`: the gradients of several rounds are added.
using GroupUpdaterMaker = std::function<std::unique_ptr<GroupUpdater>(const Catalogue& catalogue, bool adds_rounds)>;

}  // namespace rp
