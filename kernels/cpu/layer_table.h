// kernels/cpu/layer_table.h
// Defines RP_KERNEL_TABLE(name): the table of layer_kernels.h, with the loops as the including
// source compiles them.
#pragma once

#include "common/check.h"
#include "kernels/cpu/attention_loops.h"
#include "kernels/cpu/layer_loops.h"

// Calls the instance of a loop for an element type that is known only at run time.
#define RP_DISPATCH(loop, Arguments)                                                           \
  [](DType dtype, const Arguments& arguments, std::int64_t begin, std::int64_t end) {          \
    switch (dtype) {                                                                           \
      case DType::kBFloat16: return loop<Bf16>(arguments, begin, end);                         \
      case DType::kFloat16: return loop<Fp16>(arguments, begin, end);                          \
      default: RP_ASSERT(dtype == DType::kFloat32); return loop<float>(arguments, begin, end); \
    }                                                                                          \
  }

// The same for loops that follow a matrix product, which do not support fp16.
#define RP_DISPATCH_PRODUCT(loop, Arguments)                                                            \
  [](DType dtype, const Arguments& arguments, std::int64_t begin, std::int64_t end) {                   \
    RP_ASSERT(dtype == DType::kBFloat16 || dtype == DType::kFloat32);                                   \
    dtype == DType::kBFloat16 ? loop<Bf16>(arguments, begin, end) : loop<float>(arguments, begin, end); \
  }

#define RP_KERNEL_TABLE(set)                                                                                           \
  {                                                                                                                    \
    .name = set, .rms_norm = RP_DISPATCH(rms_norm_rows, RmsNormRows),                                                  \
    .rms_norm_grad = RP_DISPATCH(rms_norm_grad_rows, RmsNormGradRows), .rotate = RP_DISPATCH(rotate_rows, RotateRows), \
    .glu = RP_DISPATCH(glu_elements, Glu), .glu_grad = RP_DISPATCH(glu_grad_elements, GluGrad),                        \
    .cross_entropy = RP_DISPATCH_PRODUCT(cross_entropy_rows, CrossEntropyRows),                                        \
    .causal_softmax = RP_DISPATCH_PRODUCT(causal_softmax_rows, CausalSoftmaxRows),                                     \
    .attention_grad = RP_DISPATCH_PRODUCT(attention_grad_rows, AttentionGradRows), .pack = pack_matrix,                \
    .add = RP_DISPATCH(add_elements, AddToFloats), .round = round_floats,                                              \
    .dot = [](DType dtype, const void* a, const void* b, std::int64_t count) {                                         \
      RP_ASSERT(dtype == DType::kBFloat16 || dtype == DType::kFloat32);                                                \
      return dtype == DType::kBFloat16 ? dot_of<Bf16>(a, b, count) : dot_of<float>(a, b, count);                       \
    }                                                                                                                  \
  }
