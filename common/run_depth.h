// common/run_depth.h
// How far the parts of a run go ahead of each other (docs/design/protocol.md). Coordinator and workers keep to these
// numbers; the simulator and the estimates of memory reckon with them.
#pragma once

namespace rp {

// Rounds of a pipeline that may have a slot which is not committed.
inline constexpr int kRoundsInFlight = 2;

// Tasks that a worker is given behind the one that it runs.
inline constexpr int kTasksAhead = 2;

// Of a worker: one stage computes while the weights of the next one arrive. (Without prefetch there is one.)
inline constexpr int kStageBuffers = 2;

// Of a worker: the gradients of one stage are made while those of the one before are downloaded.
inline constexpr int kGradientBuffers = 2;

// Of a worker: one microbatch computes while the inputs of the next one arrive.
inline constexpr int kInputPlaces = 2;

// Of a worker: one microbatch computes while the outputs of the one before are downloaded.
inline constexpr int kOutputPlaces = 2;

}  // namespace rp
