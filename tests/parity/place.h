// tests/parity/place.h
// The GPU that model_values computes on, or its stand-in.
//
// Two sources define open_gpu(), and a program links one of them. plugin_place.cc opens a GPU as a worker does: by the
// CUDA plug-in, with its memory, stream, kernels and settings. emulated_place.cc stays on the CPU and installs the
// emulated kernels: models then take the code path of a GPU, over our kernels' sources and LibTorch's operators of the
// CPU.
#pragma once

#include <c10/core/Device.h>

#include <memory>

namespace rp::models {

// Holds what makes the device usable. Must outlive all tensors that are on it.
class Place {
 public:
  virtual ~Place() = default;
  [[nodiscard]] virtual c10::Device device() const = 0;
};

// Makes the GPU usable for the calling thread. REQUIRES: the process has not called LibTorch before. Throws rp::Error
// (kNoResource) if there is none.
[[nodiscard]] std::unique_ptr<Place> open_gpu();

}  // namespace rp::models
