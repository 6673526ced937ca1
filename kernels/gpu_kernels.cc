#include "kernels/gpu_kernels.h"

#include "roundpipe/error.h"

namespace rp::models {

namespace {

// The plug-in sets it once, before any thread reads it.
const GpuKernels* installed = nullptr;

}  // namespace

void set_gpu_kernels(const GpuKernels* kernels) { installed = kernels; }

const GpuKernels& gpu_kernels() {
  if (installed != nullptr) return *installed;
  throw Error(ExitCode::kNoResource,
              "a model's tensors are on a GPU, but the CUDA plug-in is not loaded in this process; start the program "
              "with rp-launch --gpus N, which loads it before anything else");
}

bool gpu_kernels_take_cpu_memory() { return installed != nullptr && installed->takes_cpu_memory; }

}  // namespace rp::models
