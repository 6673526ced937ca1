// models/layers/delta_net/gpu_delta_rule.h
// The gated delta rule on a GPU, computed by the kernels of kernels/gpu_kernels.h.
#pragma once

#include "models/layers/delta_net/delta_rule.h"

namespace rp::models {

// Computes what gated_delta_rule() computes. Chunks of 64 tokens begin at multiples of 64, wherever
// documents begin, so that all shapes are known without waiting for the GPU; wrong document lengths
// are not noticed. `is_kept`: the states at the starts of chunks are kept for the backward pass.
// Throws rp::Error (kNoResource) if keys have more than 256 elements.
[[nodiscard]] at::Tensor gpu_delta_rule(const DeltaRuleInputs& inputs, bool is_kept);

}  // namespace rp::models
