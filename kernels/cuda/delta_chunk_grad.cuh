// kernels/cuda/delta_chunk_grad.cuh
// The last part of the backward pass of the gated delta rule.
#pragma once

#include "kernels/cuda/delta_chunk.cuh"

namespace rp::cuda {

// Computes the gradients of q, k, decay and beta for all chunks at once, from the scratch memory and
// the states at the chunks' beginnings. `slices`: the number of slices of a state in `scratch.sums`.
void finish_delta_grads(DType dtype, const models::GpuDeltaRuleGrad& call, const DeltaScratch& scratch,
                        std::int64_t slices, void* stream);

}  // namespace rp::cuda
