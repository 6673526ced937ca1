// kernels/delta_arguments.h
// Arguments of the GPU kernels of linear attention with the gated delta rule (gpu_kernels.h, whose
// rules hold for them). The formulae are those of kernels/cpu/delta_kernels.h.
//
// Documents: `positions` has for each token its distance from the beginning of its document,
// [sequences, length]; null: each sequence is one document. A position is at most the token's own
// index in its sequence; with another one, results are undefined, but no memory outside the arrays
// is touched.
#pragma once

#include <cstdint>

#include "kernels/formulas.h"

namespace rp::models {

// The largest number of taps of GpuConvolution.
inline constexpr std::int64_t kMaxGpuTaps = 16;

// x[t] = silu(element(sum over j of weight[j] y[t - (taps - 1) + j])), where terms before the start
// of the token's document are left out.
struct GpuConvolution {
  const void* y = nullptr;        // [sequences, length, channels]
  const float* weight = nullptr;  // [taps, channels]
  void* x = nullptr;              // [sequences, length, channels]
  const std::int64_t* positions = nullptr;
  std::int64_t sequences = 0;
  std::int64_t length = 0;
  std::int64_t channels = 0;
  std::int64_t taps = 0;  // 1 to kMaxGpuTaps
};

// The gradients of GpuConvolution.
struct GpuConvolutionGrad {
  GpuConvolution forward;  // its x is not used
  const void* grad_x = nullptr;
  void* grad_y = nullptr;
  float* grad_weight = nullptr;   // [taps, channels], overwritten; null: not needed
  float* partial_sums = nullptr;  // scratch: num_convolution_sums() * taps * channels elements
};

// The number of tokens whose contributions to a weight's gradient one thread adds.
inline constexpr std::int64_t kTokensOfConvolution = 64;
inline constexpr std::int64_t num_convolution_sums(std::int64_t sequences, std::int64_t length) {
  return sequences * ((length + kTokensOfConvolution - 1) / kTokensOfConvolution);
}

// GatedNorm of kernels/cpu/delta_kernels.h.
struct GpuGatedNorm {
  const void* o = nullptr;
  const void* z = nullptr;
  const void* weight = nullptr;
  void* y = nullptr;
  std::int64_t columns = 0;
  float epsilon = 0;
};

// The gradients of GpuGatedNorm, which computes the norms again.
struct GpuGatedNormGrad {
  GpuGatedNorm forward;  // its y is not used
  const void* grad_y = nullptr;
  void* grad_o = nullptr;
  void* grad_z = nullptr;
  float* grad_weight = nullptr;   // `columns` elements, overwritten
  float* partial_sums = nullptr;  // scratch: num_gated_norm_sums(rows) * columns elements
};

// The number of rows whose weight gradients one block of threads adds.
inline constexpr std::int64_t kRowsOfGatedNorm = 128;
inline constexpr std::int64_t num_gated_norm_sums(std::int64_t rows) {
  return (rows + kRowsOfGatedNorm - 1) / kRowsOfGatedNorm;
}

// The largest size of a key.
inline constexpr std::int64_t kMaxGpuKeySize = 256;

// The inputs of the rule. The heads of a token are neighbours in memory, and the tokens of all
// sequences follow each other at a stride, in elements. Value head i uses key head
// i / (value_heads / key_heads).
struct GpuDeltaInputs {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const float* decay = nullptr;  // [sequences, length, value_heads], not positive
  const void* beta = nullptr;    // [sequences, length, value_heads]
  const std::int64_t* positions = nullptr;
  std::int64_t q_stride = 0, k_stride = 0, v_stride = 0;
  std::int64_t sequences = 0;
  std::int64_t length = 0;
  std::int64_t key_heads = 0, value_heads = 0;
  std::int64_t key_size = 0, value_size = 0;  // key_size is at most kMaxGpuKeySize

  // Chunks of kDeltaChunk tokens begin at multiples of kDeltaChunk, wherever documents begin.
  [[nodiscard]] constexpr std::int64_t chunks() const { return (length + kDeltaChunk - 1) / kDeltaChunk; }
};

// The forward pass.
struct GpuDeltaRule {
  GpuDeltaInputs in;
  void* o = nullptr;  // [sequences, length, value_heads, value_size]
  // The state at the beginning of each chunk, for the backward pass: [sequences, value_heads,
  // chunks, key_size, value_size]; null: not needed.
  float* states = nullptr;
  float* scratch = nullptr;  // delta_scratch_floats() elements
};

// The backward pass. Gradients have the shapes of arrays without gaps.
struct GpuDeltaRuleGrad {
  GpuDeltaInputs in;
  const float* states = nullptr;  // of the forward pass
  const void* grad_o = nullptr;
  void *grad_q = nullptr, *grad_k = nullptr, *grad_v = nullptr;
  float* grad_decay = nullptr;
  void* grad_beta = nullptr;
  float* scratch = nullptr;  // delta_grad_scratch_floats() elements
};

// The number of columns of a state that one block of threads carries from chunk to chunk, so that
// keys of either size leave room for a second block.
inline constexpr std::int64_t delta_slice(std::int64_t key_size) { return key_size <= 128 ? 32 : 16; }
inline constexpr std::int64_t num_delta_slices(const GpuDeltaInputs& in) {
  return (in.value_size + delta_slice(in.key_size) - 1) / delta_slice(in.key_size);
}

// For each chunk: two matrices of a value head and two numbers of each of its tokens; and one
// matrix of a key head and two numbers of each of its tokens.
inline constexpr std::int64_t delta_scratch_floats(const GpuDeltaInputs& in) {
  const std::int64_t of_value_head = 2 * kDeltaChunk * (kDeltaChunk + 1);
  const std::int64_t of_key_head = kDeltaChunk * (kDeltaChunk + 2);
  return in.sequences * in.chunks() * (in.value_heads * of_value_head + in.key_heads * of_key_head);
}

// In addition for each chunk: a state's gradient, a sum per slice, and two rows of values and two
// sums per slice for each token of a value head; and two rows of keys for each token of a key head.
inline constexpr std::int64_t delta_grad_scratch_floats(const GpuDeltaInputs& in) {
  const std::int64_t slices = num_delta_slices(in);
  const std::int64_t of_value_head = in.key_size * in.value_size + slices + 2 * kDeltaChunk * (in.value_size + slices);
  const std::int64_t of_key_head = 2 * kDeltaChunk * in.key_size;
  return delta_scratch_floats(in) +
         in.sequences * in.chunks() * (in.value_heads * of_value_head + in.key_heads * of_key_head);
}

}  // namespace rp::models
