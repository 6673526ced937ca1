// scheduler/layer_cost.h
// The cost of a layer for one microbatch, in bytes and operations. Times and memory are computed
// from it. model_files/layer_costs.h fills it from a model's shape.
#pragma once

#include <cstdint>

namespace rp {

// The work of one pass over one microbatch.
struct PassCost {
  double gemm_flops = 0;         // a multiplication and an addition count as two
  double attention_flops = 0;    // of the attention kernel: scores and weighted values
  double elementwise_bytes = 0;  // bytes that all other kernels move through GPU memory
};

struct LayerCost {
  PassCost forward{};
  PassCost backward{};  // without recompute

  std::uint64_t weight_bytes = 0;    // uploaded for each stage
  std::uint64_t expanded_bytes = 0;  // of quantised weights, expanded while a task computes
  std::uint64_t gradient_bytes = 0;  // downloaded by each backward; one gradient for each use of a tied parameter
  std::uint64_t input_bytes = 0;     // activation of one microbatch in front of the layer
  std::uint64_t output_bytes = 0;    // activation of one microbatch after the layer
  std::uint64_t saved_bytes = 0;     // what the backward pass needs from the forward pass, in GPU memory
  std::uint64_t forward_workspace_bytes = 0;  // in addition to saved_bytes, at the peak
  std::uint64_t backward_workspace_bytes = 0;

  // What the host store has of this layer: trained elements, and the bytes of frozen parameters. A
  // tied parameter counts for the first layer that has it.
  std::uint64_t trained_elements = 0;
  std::uint64_t frozen_bytes = 0;
  std::uint64_t correction_bytes = 0;  // of a router's correction that is trained: there are no masters and no moments
  // Elements of gradients, for the fp32 accumulators and sums. A tied parameter counts for each
  // use.
  std::uint64_t gradient_elements = 0;
};

}  // namespace rp
