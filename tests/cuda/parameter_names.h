// tests/cuda/parameter_names.h
// Prints the parameters of tests.
#pragma once

#include <ostream>

#include "cuda/cuda_device.h"

namespace rp {

inline void PrintTo(GpuSignals signals, std::ostream* out) {
  *out << (signals == GpuSignals::kWords ? "words" : "events");
}

}  // namespace rp
