// models/layers/scalar_type.h
// Converts between LibTorch's number formats and ours. It is header-only, so that programs need no
// part of the library for it.
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "common/dtype.h"
#include "common/indexed.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace internal {

// In the order of DType.
inline constexpr IndexedArray<DType, at::ScalarType, kNumDTypes> kScalarTypes = {
    at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong,         at::kInt,
    at::kShort, at::kChar,     at::kByte, at::kBool,   at::kFloat8_e4m3fn};
static_assert(kScalarTypes[DType::kFloat8E4m3] == at::kFloat8_e4m3fn);

}  // namespace internal

[[nodiscard]] constexpr at::ScalarType scalar_type_of(DType dtype) { return internal::kScalarTypes[dtype]; }

// Returns whether this is a format in which workers compute: is_working_dtype(DType).
[[nodiscard]] constexpr bool is_working_dtype(at::ScalarType type) {
  const auto* found = std::find(std::begin(internal::kScalarTypes), std::end(internal::kScalarTypes), type);
  return found != std::end(internal::kScalarTypes) &&
         is_working_dtype(static_cast<DType>(found - std::begin(internal::kScalarTypes)));
}

// Throws rp::Error (kUsage) for a format that the tensors of layers and calls cannot have, such as
// complex numbers.
[[nodiscard]] inline DType dtype_of(at::ScalarType type) {
  const auto* found = std::find(std::begin(internal::kScalarTypes), std::end(internal::kScalarTypes), type);
  const auto dtype = static_cast<DType>(found - std::begin(internal::kScalarTypes));
  if (found != std::end(internal::kScalarTypes) && is_layer_dtype(dtype)) return dtype;
  throw Error(ExitCode::kUsage,
              cat("tensors of dtype ", at::toString(type), " cannot travel between stages, nor be saved"));
}

}  // namespace rp
