// coordinator/float_format.h
// The store's name of a floating-point format, as the optimizer's passes know it.
#pragma once

#include "common/check.h"
#include "hoststore/boundary.h"
#include "optimizer/update.h"

namespace rp {

// REQUIRES: a dtype of weights.
[[nodiscard]] inline FloatFormat float_format_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return FloatFormat::kFp32;
    case DType::kBFloat16: return FloatFormat::kBf16;
    case DType::kFloat16: return FloatFormat::kFp16;
    default: RP_ASSERT(false);
  }
}

}  // namespace rp
