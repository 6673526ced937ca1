// roundpipe/plan.h
// Plans: how a model is cut into stages, how much a stage recomputes at once, and how long layers
// and steps take.
#pragma once

#include <cstdint>
#include <string>

namespace rp {

// The kind of call that a plan serves. As text a plan is "forward 0-9 10-19 | fused 20-31 |
// backward 10-19 0-9". Layers count from 0, and both ends of a range are included. Forward and
// backward stages are cut independently.
enum class PlanKind : std::uint8_t {
  kFused,  // forward_backward(): one task runs the last layers' forward pass, the loss and their backward pass
  kTrain,  // forward() with gradients: no fused stage; "forward 0-15 16-31 | backward 20-31 0-19"
  kInfer,  // forward() without gradients: "forward 0-15 16-31"
};

// The layers that a backward stage recomputes, and whose data it keeps on the device, at the same
// time.
enum class RecomputeGrain : std::uint8_t {
  kStage,  // all layers of the stage, from the stage's saved input
  kLayer,  // one layer, from its own saved input: least memory on the device, more in the host store
};

// Bounds of automatic plans.
struct PlanLimits {
  // A plan with fewer stages is rated as if it had this number of stages; 0: the number of workers.
  int min_stages = 0;
  // The longest stage may take at most this many times as long as the longest layer (including
  // recompute and backward); 0: no bound.
  double threshold = 0;
  // The maximum size of the weights of a stage, in bytes; 0: determined by the workers' memory. A
  // larger layer becomes a stage of its own.
  std::uint64_t max_stage_bytes = 0;
};

// The time that steps took, and the time that a simulation predicts for the same steps. Covers the
// newest steps (at most 1000) that had the same plan, without the first two steps of the run.
struct StepTimes {
  int num_steps = 0;       // number of measured steps; 0 if there were too few
  double measured_ms = 0;  // median time of a step
  double busy = 0;         // the share of all workers' time in which they computed
  // The time of a step in a simulation with the plan of these steps and the layers' times of this
  // run (Pipeline::layer_times()), as if copies and updates took no time. 0 if the layers' times
  // are not known, or if rounds were not run by forward_backward().
  double simulated_ms = 0;
  double simulated_busy = 0;  // the share of all workers' time in which they compute in the simulation
};

// Times of one layer for one microbatch, in ns. 0 means unknown.
struct LayerTiming {
  double forward = 0;    // the first forward pass, in a forward or fused stage
  double recompute = 0;  // the second forward pass, in a backward stage
  double backward = 0;   // without the recompute
};

}  // namespace rp
