// scheduler/simulation/machine.h
// The input of a simulated run: the resources of a machine that copies and updates share (Machine),
// the bytes that layers move (LayerBytes), and the run itself (RunWork). Units are bytes, and bytes
// per ms (1 GB/s is 1e6 bytes per ms).
#pragma once

#include <limits>
#include <vector>

#include "common/run_order.h"
#include "scheduler/workload.h"

namespace rp {

inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

struct Machine {
  // Bytes per ms of one GPU's link: each direction alone, and the sum of both while both are in
  // use.
  double upload = kUnlimited;
  double download = kUnlimited;
  double both_directions = kUnlimited;
  // Upload of weights that are read from memory that is not pinned.
  double weights_upload = kUnlimited;
  double weights_traffic = 1;  // bytes through host memory for each byte of weights
  // Ms from the end of a copy until a waiting thread observes it; the link is free in this time.
  double copy_latency = 0;
  // GPUs g with the same g / gpus_per_root are connected to one PCIe root.
  int gpus_per_root = 1;
  double root_upload = kUnlimited;
  double root_download = kUnlimited;
  // The host's memory: the bytes per ms of all copies and updates together, and of the optimizer's
  // threads alone.
  double host_memory = kUnlimited;
  double updates = kUnlimited;
};

// The bytes that one layer moves and needs.
struct LayerBytes {
  double weights = 0;   // working copy, uploaded once for each stage
  double gradient = 0;  // downloaded; 0: the layer is frozen
  double update = 0;    // through host memory, by the update of a step
  double sum = 0;       // through host memory, to add a round's gradient to those of the step's other rounds
  double updated = 0;   // of the working copy, written by the update of a step; several nodes exchange it
  double input = 0;     // one microbatch's activation in front of the layer
  // Other needs of GPU memory, as in LayerCost. Used for memory over time only.
  double accumulator = 0;  // fp32 gradients
  double expanded = 0;     // quantised weights, while a task computes
  double saved = 0;        // of one microbatch, between recompute and backward
  double forward_workspace = 0;
  double backward_workspace = 0;
};

// Determines which copies go first on a link.
struct TransferPolicy {
  // If true, weights yield to inputs of microbatches, and gradients to outputs, after each piece.
  // Otherwise copies go in the order in which they are requested, each layer's as a whole.
  bool weights_yield = true;
  bool gradients_yield = true;
  // If true, weights and gradients also wait while an input or output of another GPU at the same
  // root is copied.
  bool roots_yield = false;
  // The number of bytes between two places at which a bulk copy can be interrupted. An urgent copy
  // of a worker waits for all bulk pieces that are in flight, so this is their total length
  // when pieces are shortest.
  double piece = static_cast<double>(kBulkPiecesInFlight * kMinBulkPieceBytes);
};

// The nodes of a run, which are equal (docs/design/several-nodes.md), and their network.
struct RunNodes {
  int num_nodes = 1;
  int rounds_per_step = 0;      // of all nodes; 0: all nodes have as many as this one
  double network = kUnlimited;  // bytes per ms of a node's link, in each direction at the same time
  // Ms from the end of a transfer until the receiver, and the sender, know of it; the link is free in
  // this time.
  double network_latency = 0;
};

// A run on one node, or what the first of several nodes does of it: steps of Workload::num_microbatches, in rounds of
// Workload::round_microbatches.
struct RunWork {
  Workload workload;
  std::vector<LayerBytes> layers{};  // by layer, the head last; empty: nothing is moved, all layers are trained
  bool asynchronous = false;
  Machine machine{};
  TransferPolicy policy{};
  RunNodes nodes{};
};

}  // namespace rp
