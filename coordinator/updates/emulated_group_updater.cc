#include "coordinator/updates/emulated_group_updater.h"

#include <algorithm>

#include "common/system/clock.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr std::uint64_t kFloat = sizeof(float);

}  // namespace

void EmulatedGroupUpdater::add_to_sum(const GradientPart& part, bool begins) { pass(sum_bytes(part, begins)); }

void EmulatedGroupUpdater::sum_squares(GroupId group, std::span<double> chunks) {
  pass(norm_bytes(group));
  std::ranges::fill(chunks, 0);
}

void EmulatedGroupUpdater::write_gradient(GroupId, const UpdateStep&, float*) {
  throw Error(ExitCode::kUsage,
              "an emulated device computes no gradients that a function could apply; use an optimizer's rule");
}

void EmulatedGroupUpdater::update(GroupId group, Version, std::span<const UpdateSpan> rules) {
  pass(update_bytes(group, rules.empty()));
}

std::uint64_t EmulatedGroupUpdater::sum_bytes(const GradientPart& part, bool begins) const {
  const WeightGroupRecord& group = catalogue_.weight_groups()[catalogue_.uses()[part.use].group];
  // A sum that begins is set to zero first. Then it is read and written.
  return part.elements.size() * (dtype_bytes(group.dtype) + 2 * kFloat + (begins ? kFloat : 0));
}

std::uint64_t EmulatedGroupUpdater::norm_bytes(GroupId group) const {
  return gradient_bytes(group, catalogue_.owned(group).size());
}

std::uint64_t EmulatedGroupUpdater::update_bytes(GroupId index, std::uint64_t num_elements, bool skipped) const {
  const WeightGroupRecord& group = catalogue_.weight_groups()[index];
  const std::uint64_t working = group.working_is_master() ? 0 : num_elements * dtype_bytes(group.dtype);
  if (skipped) return working + num_elements * kFloat * (working > 0 ? 1 : 2);
  // Master and moments are read and written.
  std::uint64_t num_kept = 1;
  for (const std::uint64_t moment : {group.moment1_offset, group.moment2_offset})
    num_kept += moment == kNoOffset ? 0 : 1;
  return gradient_bytes(index, num_elements) + num_elements * 2 * kFloat * num_kept + working;
}

std::uint64_t EmulatedGroupUpdater::gradient_bytes(GroupId index, std::uint64_t num_elements) const {
  const WeightGroupRecord& group = catalogue_.weight_groups()[index];
  return num_elements * group.num_uses * (adds_rounds_ ? kFloat : dtype_bytes(group.dtype));
}

void EmulatedGroupUpdater::pass(std::uint64_t bytes) const {
  if (memory_.bytes_per_ns <= 0) return;
  sleep_until_ns(now_ns() + static_cast<std::int64_t>(static_cast<double>(bytes) / memory_.bytes_per_ns));
}

GroupUpdaterMaker emulated_updaters(const HostMemoryModel& memory) {
  return [memory](const Catalogue& catalogue, bool adds_rounds) {
    return std::make_unique<EmulatedGroupUpdater>(catalogue, memory, adds_rounds);
  };
}

}  // namespace rp
