// common/run_depth.h
// Limits how far the parts of a run get ahead of each other (docs/design/protocol.md). Coordinator
// and workers obey these limits; the simulator and the estimates of memory assume them.
#pragma once

namespace rp {

// The number of rounds of a pipeline that may have uncommitted slots at the same time.
inline constexpr int kRoundsInFlight = 2;

// The number of tasks that are sent to a worker in addition to the one that it runs.
inline constexpr int kTasksAhead = 2;

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

}  // namespace rp
