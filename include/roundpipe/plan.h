// roundpipe/plan.h
// Plans: how a model is cut into stages, what these recompute at once, and what layers take.
#pragma once

#include <cstdint>
#include <string>

namespace rp {

// What a plan is for. In text: "forward 0-9 10-19 | fused 20-31 | backward 10-19 0-9", layers counted from 0, the last
// one of a stage included. Forward and backward stages are cut independently.
enum class PlanKind : std::uint8_t {
  kFused,  // forward_backward(): the fused stage runs the last layers' forward, the loss and their backward in one
           // visit
  kTrain,  // forward() with gradients: no fused stage; "forward 0-15 16-31 | backward 20-31 0-19"
  kInfer,  // forward() without: "forward 0-15 16-31"
};

// What a backward stage recomputes and keeps on the device at once.
enum class RecomputeGrain : std::uint8_t {
  kStage,  // all its layers, from the stage's saved input
  kLayer,  // one layer, from its own saved input: least memory on the device, more in the host store
};

// Bounds of the automatic plans.
struct PlanLimits {
  // Plans of fewer stages cost as if they had as many; 0: the number of workers.
  int min_stages = 0;
  // The longest stage may take this many times the longest layer (with its recompute and backward); 0: no bound.
  double threshold = 0;
  // The weights of a stage, in bytes; 0: what the workers' memory allows. A layer that is larger gets a stage of its
  // own.
  std::uint64_t max_stage_bytes = 0;
};

// How long steps took, and what a simulated run says of the same ones. Of the newest steps (at most 1000) that had one
// plan, without the first two of the run.
struct StepTimes {
  int num_steps = 0;       // that were measured; 0: too few
  double measured_ms = 0;  // of a step, their median
  double busy = 0;         // of all workers' time, the part in which they computed
  // Simulated with the plan of these steps and what layers took in the run (Pipeline::layer_times()), as if copies and
  // updates took no time. 0: nothing is known of the layers' times, or rounds were no forward_backward().
  double simulated_ms = 0;
  double simulated_busy = 0;  // likewise, of all workers' time
};

// Times of one layer for one microbatch, in ns. 0: not known.
struct LayerTiming {
  double forward = 0;    // the first one, in a forward or fused stage
  double recompute = 0;  // the second one, in a backward stage
  double backward = 0;   // without the recompute
};

}  // namespace rp
