// coordinator/updates/group_updater.h
// Performs the passes of a step over one weight group in the host store: sums and norms of
// gradients, and the update. Each pass is over the elements that this node owns. Updates owns one,
// uses it in one thread, and decides when each pass may run.
#pragma once

#include <cstddef>
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

  // A part of a round's gradient of a use. `elements`: of the weight group.
  struct GradientPart {
    UseId use{};
    ElementRange elements{};
    const std::byte* data = nullptr;
  };

  // Adds a part of a gradient to the use's sum, or begins the sum of these elements with it.
  // REQUIRES: the gradients of several rounds are added; this node owns the elements.
  virtual void add_to_sum(const GradientPart& part, bool begins) = 0;

  // Writes the sums of squares of the chunks of the group's gradient, which is the sum over all of
  // its uses.
  virtual void sum_squares(GroupId group, std::span<double> chunks) = 0;

  // Writes the group's gradient as fp32, scaled and clipped according to `scaling`. REQUIRES: this
  // node owns all elements.
  virtual void write_gradient(GroupId group, const UpdateStep& scaling, float* gradient) = 0;

  // Makes `version` of the group from the version before it. If there are no rules, it has the same
  // weights, also where other nodes own them. REQUIRES: fp32 masters.
  virtual void update(GroupId group, Version version, std::span<const UpdateSpan> rules) = 0;

  // Returns the group whose update to `version` a process that has died may have left unfinished. Then update() of that
  // group, with the same rules, finishes it, and must come first.
  [[nodiscard]] virtual std::optional<GroupId> unfinished(Version) const { return std::nullopt; }
};

// Makes a GroupUpdater for a catalogue, which outlives it. `adds_rounds`: the gradients of several rounds are added.
using GroupUpdaterMaker = std::function<std::unique_ptr<GroupUpdater>(const Catalogue& catalogue, bool adds_rounds)>;

}  // namespace rp
