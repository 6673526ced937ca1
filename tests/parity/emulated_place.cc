#include "kernels/cuda/kernels.h"
#include "kernels/gpu_kernels.h"
#include "tests/parity/place.h"

namespace rp::models {

namespace {

class EmulatedPlace : public Place {
 public:
  EmulatedPlace() {
    table_.takes_cpu_memory = true;
    table_.current_stream = []() -> void* { return nullptr; };
    set_gpu_kernels(&table_);
  }
  ~EmulatedPlace() override { set_gpu_kernels(nullptr); }
  [[nodiscard]] c10::Device device() const override { return c10::kCPU; }

 private:
  GpuKernels table_ = cuda::kernel_table();
};

}  // namespace

std::unique_ptr<Place> open_gpu() { return std::make_unique<EmulatedPlace>(); }

}  // namespace rp::models
