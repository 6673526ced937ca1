// kernels/cpu/quantised/weight_table.h
// Defines RP_WEIGHT_TABLE(name): the table of weight_kernels.h, with the loops as the including
// source compiles them.
#pragma once

#include "common/check.h"
#include "kernels/cpu/quantised/expand_loops.h"
#include "kernels/cpu/quantised/quantise_loops.h"

// Calls the instance of a loop for an element type that is known only at run time.
#define RP_WEIGHT_DISPATCH(loop, ...)                                              \
  switch (dtype) {                                                                 \
    case DType::kBFloat16: return loop<Bf16>(__VA_ARGS__);                         \
    case DType::kFloat16: return loop<Fp16>(__VA_ARGS__);                          \
    default: RP_ASSERT(dtype == DType::kFloat32); return loop<float>(__VA_ARGS__); \
  }

#define RP_WEIGHT_TABLE(set)                                                                                  \
  {                                                                                                           \
    .name = set,                                                                                              \
    .expand = [](DType dtype, const QuantisedMatrix& matrix, void* values, std::int64_t begin,                \
                 std::int64_t end) { RP_WEIGHT_DISPATCH(expand_matrix, matrix, values, begin, end) },         \
    .quantise = [](DType dtype, const QuantiseMatrix& matrix) { RP_WEIGHT_DISPATCH(quantise_matrix, matrix) } \
  }
