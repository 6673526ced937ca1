// kernels/cpu/layer_kernels.h
// Element-wise and row-wise loops of a transformer on the CPU. Each is one pass over memory, where
// a chain of LibTorch operators makes five to ten.
//
// A kernel works on a range of rows (or elements) of plain arrays, so that the caller may divide a
// call among threads. Results depend on the inputs alone: sums have a fixed order (16 lanes, then
// lane by lane), no operations are fused, and every instruction set computes the same bits.
// Arithmetic is fp32; values are rounded once when stored.
//
// Activations and weights have a working dtype (common/dtype.h); `element(x)` rounds to it. The
// norms, the rotation, the gated units and the sum of floats accept fp16. The loops that work on
// the results of matrix products (cross entropy, tiles of attention) accept bf16 and fp32 only: on
// the CPU products of fp16 are computed in fp32 (models/layers/linear.h), and so is what follows
// them. A call with a dtype that its loop does not accept is a broken invariant: it aborts before
// it reads any data.
#pragma once

#include <cstdint>
#include <span>

#include "common/dtype.h"
#include "kernels/layer_arguments.h"

namespace rp::models {

// One table per instruction set. `begin` and `end` are the range of rows (elements for Glu and
// AddToFloats) of a call. pack() processes all rows.
struct LayerKernels {
  const char* name;
  void (*rms_norm)(DType, const RmsNormRows&, std::int64_t begin, std::int64_t end);
  void (*rms_norm_grad)(DType, const RmsNormGradRows&, std::int64_t begin, std::int64_t end);
  void (*rotate)(DType, const RotateRows&, std::int64_t begin, std::int64_t end);
  void (*glu)(DType, const Glu&, std::int64_t begin, std::int64_t end);
  void (*glu_grad)(DType, const GluGrad&, std::int64_t begin, std::int64_t end);
  void (*cross_entropy)(DType, const CrossEntropyRows&, std::int64_t begin, std::int64_t end);
  void (*causal_softmax)(DType, const CausalSoftmaxRows&, std::int64_t begin, std::int64_t end);
  void (*attention_grad)(DType, const AttentionGradRows&, std::int64_t begin, std::int64_t end);
  void (*pack)(DType, const PackRows&);
  // total[i] += from[i], by elements.
  void (*add)(DType, const AddToFloats&, std::int64_t begin, std::int64_t end);
  // to[i] = from[i], rounded.
  void (*round)(DType, const float* from, void* to, std::int64_t count);
  // Returns the sum of a[i] * b[i] in fp32.
  float (*dot)(DType, const void* a, const void* b, std::int64_t count);
};

extern const LayerKernels kPortableLayerKernels;
extern const LayerKernels kAvx2LayerKernels;    // x86-64 only
extern const LayerKernels kAvx512LayerKernels;  // x86-64 only

// Returns the fastest table that this processor can run.
[[nodiscard]] const LayerKernels& layer_kernels();

// Returns all tables that this processor can run, the portable one first.
[[nodiscard]] std::span<const LayerKernels* const> usable_layer_kernels();

}  // namespace rp::models
