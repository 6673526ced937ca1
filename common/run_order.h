// common/run_order.h
// Rules for the order of a run's work that coordinator and workers follow and that simulations
// repeat (docs/design/simulation.md). The limits of how far parts of a run get ahead are in
// common/run_depth.h.
#pragma once

#include <cstdint>

namespace rp {

// Returns the worker that runs a slot.
[[nodiscard]] constexpr int worker_of_slot(std::uint64_t slot, int num_workers) {
  return static_cast<int>(slot % static_cast<std::uint64_t>(num_workers));
}

// Returns how many of the steps before a round its weights contain. With asynchronous steps the
// newest one is missing, because its update runs during the round.
[[nodiscard]] constexpr std::uint64_t steps_in_weights(std::uint64_t num_steps, bool asynchronous) {
  return asynchronous && num_steps > 0 ? num_steps - 1 : num_steps;
}

// Bulk copies, those of weights and gradients, are copied in pieces, so that inputs and outputs can
// pass them on the link. At most the bytes of so many longest pieces are in flight, and an input or
// output waits for all of them.
inline constexpr std::uint64_t kBulkPiecesInFlight = 2;

// The limits between which a worker chooses the length of the longest pieces. Every piece needs
// four calls of the driver, so they are not shorter than the minimum. The maximum is what a link of
// 64 GB/s and a refill of 200 us need; it limits how long an urgent copy waits if a refill was
// measured too long (docs/design/transfers.md).
inline constexpr std::uint64_t kMinBulkPieceBytes = std::uint64_t{4} << 20;
inline constexpr std::uint64_t kMaxBulkPieceBytes = std::uint64_t{20} << 20;

}  // namespace rp
