// scheduler/workload.h
// Workload: the input of a simulated schedule. It says how long the layers of a model take and how
// many GPUs there are. Times are in ms, for one microbatch on one GPU.
#pragma once

#include <vector>

#include "roundpipe/plan.h"

namespace rp {

struct LayerWork {
  double forward = 0;
  double backward = 0;  // without recompute
};

struct Workload {
  int num_gpus = 1;
  int num_microbatches = 1;    // of a step
  int round_microbatches = 1;  // RoundPipe only: of a round; divides num_microbatches
  double hop = 0;              // ms from the end of a task to the start of the next one on another GPU
  std::vector<LayerWork> layers;
  // By GPU: the factor by which its times are multiplied; empty: 1 for all.
  std::vector<double> slowness{};
  LayerWork head;               // LM head and loss: after the last layer, never recomputed
  int first_trained_layer = 0;  // RoundPipe only: layers below have no backward and no recompute
  // RoundPipe only: true if the fused stage's forward begins when its input has arrived. In the
  // published simulations it does not wait, as if it were a recompute.
  bool fused_waits = true;
  RecomputeGrain recompute = RecomputeGrain::kStage;  // RoundPipe only

  [[nodiscard]] double slowness_of(int gpu) const { return slowness.empty() ? 1 : slowness[gpu]; }
  [[nodiscard]] int num_layers() const { return static_cast<int>(layers.size()); }
};

}  // namespace rp
