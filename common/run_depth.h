// common/run_depth.h
// Limits how far the parts of a run get ahead of each other (docs/design/protocol.md). Coordinator
// and workers obey these limits; the simulator and the estimates of memory assume them.
#pragma once

#include <cstdint>

namespace rp {

// The number of rounds of a pipeline that may have uncommitted slots at the same time.
inline constexpr int kRoundsInFlight = 2;
// `in_flight`: number of rounds of the pipeline that have uncommitted slots.
[[nodiscard]] constexpr bool may_begin_round(std::int64_t in_flight) { return in_flight < kRoundsInFlight; }

// The number of tasks that are sent to a worker in addition to the one that it runs.
inline constexpr int kTasksAhead = 2;
// `uncommitted`: number of tasks that the worker was sent and that are not committed.
[[nodiscard]] constexpr bool may_send_task(int uncommitted) { return uncommitted <= kTasksAhead; }

// A worker's stage buffers: one stage computes while the weights of the next one arrive. (Without
// prefetch there is one.)
inline constexpr int kStageBuffers = 2;

// A worker's gradient buffers: the gradients of one stage are computed while those of the previous
// one are downloaded.
inline constexpr int kGradientBuffers = 2;

// A worker's input places: one microbatch computes while the inputs of the next one arrive.
inline constexpr int kInputPlaces = 2;

// A worker's output places: one microbatch computes while the outputs of the previous one are
// downloaded.
inline constexpr int kOutputPlaces = 2;

// Returns how many users of so many buffers or places must have returned theirs before user n gets
// one. Users are numbered from 0, and get and return them in this order.
[[nodiscard]] constexpr std::uint64_t returned_before(std::uint64_t n, int num_places) {
  const auto places = static_cast<std::uint64_t>(num_places);
  return n < places ? 0 : n + 1 - places;
}

}  // namespace rp
