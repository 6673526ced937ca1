// kernels/cpu/delta_kernels.h
// Loops of linear attention with the gated delta rule on the CPU: a short convolution, the gates,
// the rule itself, and the norm that follows it.
//
// As in layer_kernels.h, the caller divides a call among threads, arithmetic is fp32 in a fixed
// order without fused operations, and every instruction set computes the same bits. All loops
// accept bf16, fp16 and fp32 activations; `element(x)` rounds to the activations' dtype. Arrays are
// without gaps, except where a stride is given. Strides count elements.
#pragma once

#include <cstdint>
#include <span>

#include "common/dtype.h"
#include "kernels/formulas.h"

namespace rp::models {

// The largest number of taps of a convolution.
constexpr std::int64_t kMaxConvolutionTaps = 16;

// x[t] = silu(element(sum over j of weight[j] y[t - (taps - 1) + j])) for the tokens of one
// document and the channels of the call. Terms before the document's start are left out.
struct Convolution {
  const void* y = nullptr;        // [length, channels]
  const float* weight = nullptr;  // [taps, channels]
  void* x = nullptr;              // [length, channels]
  std::int64_t length = 0;
  std::int64_t channels = 0;
  std::int64_t taps = 0;
};

// The gradients of Convolution. That of the weight is added to `grad_weight`.
struct ConvolutionGrad {
  const void* grad_x = nullptr;
  const void* y = nullptr;
  const float* weight = nullptr;
  void* grad_y = nullptr;
  float* grad_weight = nullptr;  // [taps, channels]; null: not needed
  std::int64_t length = 0;
  std::int64_t channels = 0;
  std::int64_t taps = 0;
};

// decay = -exp(a_log) softplus(a + dt_bias), beta = element(sigmoid(b)), for rows of `heads`
// elements.
struct DeltaGates {
  const void* a = nullptr;
  const void* b = nullptr;
  const float* a_log = nullptr;    // one per head
  const float* dt_bias = nullptr;  // one per head
  float* decay = nullptr;
  void* beta = nullptr;
  std::int64_t heads = 0;
};

// The gradients of DeltaGates. Those of a_log and dt_bias are added, row by row.
struct DeltaGatesGrad {
  const float* grad_decay = nullptr;
  const void* grad_beta = nullptr;
  const void* a = nullptr;
  const void* b = nullptr;
  const float* a_log = nullptr;
  const float* dt_bias = nullptr;
  void* grad_a = nullptr;
  void* grad_b = nullptr;
  float* grad_a_log = nullptr;
  float* grad_dt_bias = nullptr;
  std::int64_t heads = 0;
};

// y = element(n * silu(z)), n = element(weight * element(o * rstd)), rstd = 1 / sqrt(mean(o^2) +
// epsilon), for rows of `columns` elements.
struct GatedNorm {
  const void* o = nullptr;
  const void* z = nullptr;
  const void* weight = nullptr;
  void* y = nullptr;
  float* rstd = nullptr;  // one per row, written
  std::int64_t columns = 0;
  float epsilon = 0;
};

// The gradients of GatedNorm. That of the weight is added, row by row.
struct GatedNormGrad {
  const void* grad_y = nullptr;
  const void* o = nullptr;
  const void* z = nullptr;
  const void* weight = nullptr;
  const float* rstd = nullptr;
  void* grad_o = nullptr;
  void* grad_z = nullptr;
  float* grad_weight = nullptr;  // fp32, `columns` elements
  std::int64_t columns = 0;
};

// One key head with the value heads that share it, over the tokens of one document. The state S of
// a value head, [key_size, value_size], is zero at the document's start. For each token, with q and
// k divided by their lengths and q also by sqrt(key_size):
//   S = exp(decay) S;  u = beta (v - S^T k);  S = S + k u^T;  o = element(S^T q).
// All pointers are at the document's first token. The heads of a token are neighbours in memory.
struct DeltaHead {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const float* decay = nullptr;
  const void* beta = nullptr;
  std::int64_t q_stride = 0, k_stride = 0, v_stride = 0;  // from one token to the next
  std::int64_t gate_stride = 0;                           // the same for decay and beta
  std::int64_t length = 0;
  std::int64_t key_size = 0, value_size = 0;
  std::int64_t values = 0;  // number of value heads
  // The states at the start of each chunk of kDeltaChunk tokens, except the first, whose state is
  // zero: [chunks - 1, `values`, key_size, value_size], with a stride between chunks. The forward
  // pass writes them, and the backward pass reads them. Null in a forward pass: not needed.
  float* states = nullptr;
  std::int64_t states_stride = 0;
  float* scratch = nullptr;  // scratch_floats() numbers, zeros before the first call
};

// The results of the forward and of the backward pass. Their strides between tokens are those of
// arrays without gaps.
struct DeltaOutput {
  void* o = nullptr;
  std::int64_t stride = 0;
};
struct DeltaGradients {
  const void* grad_o = nullptr;
  void* grad_q = nullptr;
  void* grad_k = nullptr;
  void* grad_v = nullptr;
  float* grad_decay = nullptr;
  void* grad_beta = nullptr;
  std::int64_t key_stride = 0;    // of grad_q and grad_k
  std::int64_t value_stride = 0;  // of grad_o and grad_v
  std::int64_t gate_stride = 0;   // of grad_decay and grad_beta
};

// One table per instruction set. `begin` and `end` are the range of channels of a convolution, and
// of rows of the gates and the norm. delta_head() processes a whole head.
struct DeltaKernels {
  const char* name;
  void (*convolution)(DType, const Convolution&, std::int64_t begin, std::int64_t end);
  void (*convolution_grad)(DType, const ConvolutionGrad&, std::int64_t begin, std::int64_t end);
  void (*gates)(DType, const DeltaGates&, std::int64_t begin, std::int64_t end);
  void (*gates_grad)(DType, const DeltaGatesGrad&, std::int64_t begin, std::int64_t end);
  void (*gated_norm)(DType, const GatedNorm&, std::int64_t begin, std::int64_t end);
  void (*gated_norm_grad)(DType, const GatedNormGrad&, std::int64_t begin, std::int64_t end);
  void (*delta_head)(DType, const DeltaHead&, const DeltaOutput&);
  void (*delta_head_grad)(DType, const DeltaHead&, const DeltaGradients&);
  // Returns the size of DeltaHead::scratch for a pass in either direction.
  std::int64_t (*scratch_floats)(std::int64_t key_size, std::int64_t value_size, std::int64_t values);
};

extern const DeltaKernels kPortableDeltaKernels;
extern const DeltaKernels kAvx2DeltaKernels;    // x86-64 only
extern const DeltaKernels kAvx512DeltaKernels;  // x86-64 only

// Returns the fastest table that this processor can run.
[[nodiscard]] const DeltaKernels& delta_kernels();

// Returns all tables that this processor can run, the portable one first.
[[nodiscard]] std::span<const DeltaKernels* const> usable_delta_kernels();

}  // namespace rp::models
