// tests/cuda/parameter_names.h
// How parameters of tests are printed.
#pragma once

#include <ostream>

#include "cuda/cuda_device.h"

namespace rp {

inline void PrintTo(GpuSignals signals, std::ostream* out) {
  *out << (signals == GpuSignals::kWords ? "words" : "events");
}

}  // namespace rp
