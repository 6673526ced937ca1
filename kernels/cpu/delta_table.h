// kernels/cpu/delta_table.h
// Defines RP_DELTA_TABLE(name): the table of delta_kernels.h, with the loops as the including
// source compiles them.
#pragma once

#include "common/check.h"
#include "kernels/cpu/delta_loops.h"
#include "kernels/cpu/delta_rule_grad_loops.h"
#include "kernels/cpu/delta_rule_loops.h"

// Calls the instance of a loop for an element type that is known only at run time.
#define RP_DELTA_DISPATCH(loop, ...)                                               \
  switch (dtype) {                                                                 \
    case DType::kBFloat16: return loop<Bf16>(__VA_ARGS__);                         \
    case DType::kFloat16: return loop<Fp16>(__VA_ARGS__);                          \
    default: RP_ASSERT(dtype == DType::kFloat32); return loop<float>(__VA_ARGS__); \
  }
#define RP_DELTA_ROWS(loop, Arguments)                                                \
  [](DType dtype, const Arguments& arguments, std::int64_t begin, std::int64_t end) { \
    RP_DELTA_DISPATCH(loop, arguments, begin, end)                                    \
  }
#define RP_DELTA_HEAD(loop, Results) \
  [](DType dtype, const DeltaHead& head, const Results& results) { RP_DELTA_DISPATCH(loop, head, results) }

#define RP_DELTA_TABLE(set)                                                                                           \
  {                                                                                                                   \
    .name = set, .convolution = RP_DELTA_ROWS(convolve, Convolution),                                                 \
    .convolution_grad = RP_DELTA_ROWS(convolve_grad, ConvolutionGrad), .gates = RP_DELTA_ROWS(gate_rows, DeltaGates), \
    .gates_grad = RP_DELTA_ROWS(gate_grad_rows, DeltaGatesGrad),                                                      \
    .gated_norm = RP_DELTA_ROWS(gated_norm_rows, GatedNorm),                                                          \
    .gated_norm_grad = RP_DELTA_ROWS(gated_norm_grad_rows, GatedNormGrad),                                            \
    .delta_head = RP_DELTA_HEAD(run_delta_head, DeltaOutput),                                                         \
    .delta_head_grad = RP_DELTA_HEAD(run_delta_head_grad, DeltaGradients), .scratch_floats = delta_scratch_floats     \
  }
