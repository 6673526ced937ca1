// kernels/cuda/delta_chunk_grad.cuh
// The last parts of the backward pass of the gated delta rule.
#pragma once

#include "kernels/cuda/delta_chunk.cuh"

namespace rp::cuda {

// Computes the gradients of decay and beta, and in the scratch memory those of the divided rows of q
// and k, for all chunks at once, from the states at the chunks' beginnings and the results of the
// slices in the scratch memory. `slices`: the number of slices of a state in `scratch.sums`.
void finish_delta_grads(DType dtype, const models::GpuDeltaRuleGrad& call, const DeltaScratch& scratch,
                        std::int64_t slices, void* stream);

// Then computes the gradients of q and k.
void finish_delta_rows(DType dtype, const models::GpuDeltaRuleGrad& call, const DeltaScratch& scratch, void* stream);

}  // namespace rp::cuda
