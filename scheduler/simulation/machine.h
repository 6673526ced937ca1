// scheduler/simulation/machine.h
// What the copies and updates of a run share on a machine, and what a run moves. Bytes, and bytes per ms (1 GB/s is 1e6
// of them).
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "scheduler/workload.h"

namespace rp {

inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

struct Machine {
  // Of one GPU's link, in bytes per ms: each direction alone, and the sum of both at once.
  double upload = kUnlimited;
  double download = kUnlimited;
  double both_directions = kUnlimited;
  // Of weights, where the host memory that they are read from is not pinned.
  double weights_upload = kUnlimited;
  double weights_traffic = 1;  // through host memory, for each of their bytes
  double copy_latency = 0;     // ms, from the end of a copy to who waits for it; the link is free meanwhile
  // GPUs g with the same g / gpus_per_root are behind one PCIe root.
  int gpus_per_root = 1;
  double root_upload = kUnlimited;
  double root_download = kUnlimited;
  // Of the host's memory: what all copies and updates move together; and what the optimizer's threads reach alone.
  double host_memory = kUnlimited;
  double updates = kUnlimited;
};

// What one layer moves and needs, in bytes.
struct LayerBytes {
  double weights = 0;   // working copy, as uploaded; of a stage
  double gradient = 0;  // as downloaded; 0: frozen
  double update = 0;    // through host memory, by the update of a step
  double sum = 0;       // likewise, where a round's gradient is added to those of the step's other rounds
  double input = 0;     // what enters the layer: of a microbatch
  // On the GPU, besides: as in LayerCost. Only for memory over time.
  double accumulator = 0;  // fp32 gradients
  double saved = 0;        // of a microbatch, between recompute and backward
  double forward_workspace = 0;
  double backward_workspace = 0;
};

// Which copies go first on a link.
struct TransferPolicy {
  // Weights give way to inputs of microbatches, gradients to outputs, after a piece. Else copies go in the order in
  // which they are known, each layer's as a whole.
  bool weights_yield = true;
  bool gradients_yield = true;
  // Weights and gradients also wait while an input or output of another GPU behind the same root travels.
  bool roots_yield = false;
  double piece =
      8 << 20;  // bytes: what a worker has under way of a bulk copy, where it cuts it into the shortest pieces
};

// A run: steps of the workload's microbatches in rounds of its round_microbatches.
struct RunWork {
  Workload workload;
  std::vector<LayerBytes> layers{};  // with the head as the last one; empty: nothing is moved, all are trained
  bool asynchronous = false;
  Machine machine{};
  TransferPolicy policy{};
};

}  // namespace rp
