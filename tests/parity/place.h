// tests/parity/place.h
// The GPU on which model_values computes, or its replacement.
//
// Two sources define open_gpu(), and a program links one of them. plugin_place.cc opens a GPU as a
// worker does: with the CUDA plug-in and its memory, stream, kernels and settings.
// emulated_place.cc stays on the CPU and installs the emulated kernels. Models then take the code
// path of a GPU, with the sources of our kernels and LibTorch's operators for the CPU.
#pragma once

#include <c10/core/Device.h>

#include <memory>

namespace rp::models {

// Owns the objects that make the device usable. Must outlive all tensors on the device.
class Place {
 public:
  virtual ~Place() = default;
  [[nodiscard]] virtual c10::Device device() const = 0;
};

// Makes the GPU usable for the calling thread. REQUIRES: the process has not called LibTorch
// before. Throws rp::Error (kNoResource) if there is no GPU.
[[nodiscard]] std::unique_ptr<Place> open_gpu();

}  // namespace rp::models
