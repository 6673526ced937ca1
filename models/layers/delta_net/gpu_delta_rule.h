// models/layers/delta_net/gpu_delta_rule.h
// The gated delta rule on a GPU, computed with LibTorch's products.
#pragma once

#include "models/layers/delta_net/delta_rule.h"

namespace rp::models {

// Computes what gated_delta_rule() computes. Chunks of 64 tokens begin at multiples of 64, wherever
// documents begin, so that all shapes are known without waiting for the GPU. Products of a chunk
// with itself are computed for all chunks at once; only those that carry the state from chunk to
// chunk follow each other.
[[nodiscard]] at::Tensor gated_delta_rule_by_products(const DeltaRuleInputs& inputs);

}  // namespace rp::models
