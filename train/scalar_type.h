// train/scalar_type.h
// The dtype of --dtype as LibTorch's.
#pragma once

#include <c10/core/ScalarType.h>

#include "train/settings.h"

namespace rp {

inline at::ScalarType scalar_type(TrainSettings::DType dtype) {
  switch (dtype) {
    case TrainSettings::DType::kFloat16: return at::kHalf;
    case TrainSettings::DType::kFloat32: return at::kFloat;
    case TrainSettings::DType::kBFloat16: break;
  }
  return at::kBFloat16;
}

}  // namespace rp
