// kernels/cuda/kernels.h
// Declares the functions of the table in kernels/gpu_kernels.h. That file documents them:
// arguments, formulae, which memory may overlap.
//
// Built by nvcc for RP_CUDA_ARCHITECTURES into the archive rp_kernels_cuda, without LibTorch. A
// program that links it also links a CUDA runtime, static or shared. Launches go to the current
// device of the calling thread.
#pragma once

#include <cstdint>

#include "kernels/gpu_kernels.h"

namespace rp::cuda {

// rms_norm.cu: one block of threads per row; the second read of a row comes from the cache.
void rms_norm(DType dtype, const models::RmsNormRows& call, std::int64_t rows, void* stream);
void add_rms_norm(DType dtype, const models::AddRmsNormRows& call, std::int64_t rows, void* stream);
// A block of rows_per_sum() rows keeps its share of the weight's gradient in registers. A second
// launch adds the shares.
void rms_norm_grad(DType dtype, const models::GpuRmsNormGradRows& call, std::int64_t rows, void* stream);

// rotary.cu
void rotary_table(DType dtype, const models::RotaryAngles& call, void* stream);
void rotate(DType dtype, const models::RotateRows& call, std::int64_t rows, void* stream);

// glu.cu
void glu(DType dtype, const models::Glu& call, std::int64_t count, void* stream);
void glu_grad(DType dtype, const models::GluGrad& call, std::int64_t count, void* stream);

// cross_entropy.cu: one block per row; one read finds the largest logit and the sum of
// exponentials.
void cross_entropy(DType dtype, const models::GpuCrossEntropyRows& call, std::int64_t rows, void* stream);
void sum_losses(const models::LossSum& call, void* stream);

// gradient.cu
void scale(DType dtype, const models::ScaleElements& call, void* stream);
void round_gradient(DType dtype, const models::RoundGradient& call, void* stream);

// embedding.cu
void embed(DType dtype, const models::EmbedRows& call, std::int64_t count, void* stream);
void embed_grad(DType dtype, const models::EmbedGradRows& call, std::int64_t count, void* stream);

// grouped_product.cu: a block computes 128 x 128 results of one expert at a time; the expert is
// read on the GPU.
void plan_experts(const models::ExpertRows& call, void* stream);
void grouped_linear(DType dtype, const models::GroupedProduct& call, void* stream);
void grouped_linear_grad(DType dtype, const models::GroupedProduct& call, void* stream);
void grouped_weight_grad(DType dtype, const models::GroupedProduct& call, void* stream);

// expand_weights.cu: a thread stores 16 bytes of values at a time.
void expand_weights(DType dtype, const QuantisedWeights& call, void* values, void* stream);

// convolution.cu: a thread processes one channel of kTokensOfConvolution tokens, and keeps what its
// taps share in registers.
void convolution(DType dtype, const models::GpuConvolution& call, void* stream);
void convolution_grad(DType dtype, const models::GpuConvolutionGrad& call, void* stream);

// gated_norm.cu: one warp per row.
void gated_norm(DType dtype, const models::GpuGatedNorm& call, std::int64_t rows, void* stream);
void gated_norm_grad(DType dtype, const models::GpuGatedNormGrad& call, std::int64_t rows, void* stream);

// delta_rule.cu, delta_rule_grad.cu: what each chunk needs of itself for all chunks at once; then a
// block of threads carries a slice of a state, or of its gradient, from chunk to chunk; in the
// backward pass then the remaining gradients of all chunks at once.
void delta_rule(DType dtype, const models::GpuDeltaRule& call, void* stream);
void delta_rule_grad(DType dtype, const models::GpuDeltaRuleGrad& call, void* stream);

// timing.cu: adds the time of the GPU's clock, in ns, to a number in its memory, or subtracts it
// (sign -1).
void add_time(std::int64_t* total, int sign, void* stream);

// Returns all functions that models/layers/ops.h uses. `current_stream` is null: the plug-in, which
// knows LibTorch's streams, copies the table and sets it.
[[nodiscard]] const models::GpuKernels& kernel_table();

}  // namespace rp::cuda
