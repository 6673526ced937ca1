// scheduler/layer_cost.h
// What a layer costs for one microbatch, in bytes and operations: what times and memory are reckoned from. Filled from
// a model's shape by model_files/layer_costs.h.
#pragma once

#include <cstdint>

namespace rp {

// The work of one pass over one microbatch.
struct PassCost {
  double gemm_flops = 0;         // a multiplication and an addition are two
  double attention_flops = 0;    // of the attention's kernel: scores and weighted values
  double elementwise_bytes = 0;  // through GPU memory, by everything else
};

struct LayerCost {
  PassCost forward{};
  PassCost backward{};  // without recompute

  std::uint64_t weight_bytes = 0;    // uploaded for each stage
  std::uint64_t gradient_bytes = 0;  // downloaded by each backward; one gradient for each use of a tied parameter
  std::uint64_t input_bytes = 0;     // activation of one microbatch at the layer's boundaries
  std::uint64_t output_bytes = 0;
  std::uint64_t saved_bytes = 0;              // what a backward needs of its forward, in GPU memory
  std::uint64_t forward_workspace_bytes = 0;  // besides, at the peak
  std::uint64_t backward_workspace_bytes = 0;

  // Elements that lie in the host store for this layer: a tied parameter counts for the first layer that has it.
  std::uint64_t trained_elements = 0;
  std::uint64_t frozen_elements = 0;
  // Of gradients, for the fp32 accumulators and sums: those of each use.
  std::uint64_t gradient_elements = 0;
};

}  // namespace rp
