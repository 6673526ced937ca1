// Measures how much of the GPU's memory bandwidth our kernels (kernels/cuda) reach: GB/s of the
// bytes that a call must read and write, in bf16 with the sizes of a 1.7B-shaped model, for 2,048,
// 16,384 and 73,728 tokens. The loss is computed for 2,048 rows at a time, as the models do. All
// calls use the same arguments, so data that fits into the GPU's cache comes from there.
//
// Prints a line of JSON for each. Exit code 69 without a GPU, or if its memory is too small for the
// next number of tokens.
//
//   gpu_kernel_speed
#include <iostream>

#include <nlohmann/json.hpp>

#include "benchmarks/kernel_calls.h"
#include "common/program_main.h"
#include "kernels/cuda/kernels.h"

namespace {

int measure(int argc) {
  if (argc > 1) throw rp::Error(rp::ExitCode::kUsage, "usage: gpu_kernel_speed");
  const rp::CudaContext context = rp::CudaContext::open(rp::cuda_driver(), "");
  for (const std::int64_t tokens : {2048, 16384, 73728}) {
    for (const rp::KernelSpeed& speed :
         rp::measure_kernels(context, rp::cuda::kernel_table(), {.tokens = tokens}, 10, 5)) {
      const nlohmann::ordered_json line = {
          {"kernel", speed.kernel}, {"tokens", tokens}, {"us", speed.us}, {"gbs", speed.gbs}};
      std::cout << line.dump() << "\n" << std::flush;
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char**) {
  return rp::run_program("gpu_kernel_speed", [&] { return measure(argc); });
}
