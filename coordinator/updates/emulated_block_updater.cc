#include "coordinator/updates/emulated_block_updater.h"

#include "common/system/clock.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr std::uint64_t kFloat = sizeof(float);

}  // namespace

void EmulatedBlockUpdater::add_to_sum(std::uint32_t use, bool begins) { pass(sum_bytes(use, begins)); }

double EmulatedBlockUpdater::square_sum(std::uint32_t block) {
  pass(norm_bytes(block));
  return 0;
}

void EmulatedBlockUpdater::write_gradient(std::uint32_t, const UpdateStep&, float*) {
  throw Error(ExitCode::kUsage, "an emulated device computes no gradients that a function could apply; use an optimizer's rule");
}

void EmulatedBlockUpdater::update(std::uint32_t block, std::uint64_t, std::span<const UpdateSpan> rules) {
  pass(update_bytes(block, rules.empty()));
}

std::uint64_t EmulatedBlockUpdater::sum_bytes(std::uint32_t use, bool begins) const {
  const BlockRecord& block = catalogue_.blocks()[catalogue_.uses()[use].block];
  // The sum is set to zero first, then read and written.
  return block.num_elements * (dtype_bytes(block.dtype) + 2 * kFloat + (begins ? kFloat : 0));
}

std::uint64_t EmulatedBlockUpdater::norm_bytes(std::uint32_t block) const { return gradient_bytes(catalogue_.blocks()[block]); }

std::uint64_t EmulatedBlockUpdater::update_bytes(std::uint32_t index, bool skipped) const {
  const BlockRecord& block = catalogue_.blocks()[index];
  const std::uint64_t working = block.working_is_master() ? 0 : block.bytes();
  if (skipped) return working + block.num_elements * kFloat * (working > 0 ? 1 : 2);
  // Master and moments are read and written.
  std::uint64_t num_kept = 1;
  for (const std::uint64_t moment : {block.moment1_offset, block.moment2_offset}) num_kept += moment == kNoOffset ? 0 : 1;
  return gradient_bytes(block) + block.num_elements * 2 * kFloat * num_kept + working;
}

std::uint64_t EmulatedBlockUpdater::gradient_bytes(const BlockRecord& block) const {
  return block.num_elements * block.num_uses * (adds_rounds_ ? kFloat : dtype_bytes(block.dtype));
}

void EmulatedBlockUpdater::pass(std::uint64_t bytes) const {
  if (memory_.bytes_per_ns <= 0) return;
  sleep_until_ns(now_ns() + static_cast<std::int64_t>(static_cast<double>(bytes) / memory_.bytes_per_ns));
}

}  // namespace rp
