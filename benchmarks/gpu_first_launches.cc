// Measures the first launch of each of our kernels and of cuBLAS (its handle and a product). Each
// is launched twice in a process in which no other stream has work, and twice in one in which a
// stream waits for a word that is not written yet, as workers' streams do. If the driver waits for
// that stream before it loads a kernel, the launch is held up until a watchdog writes the word.
//
// Prints a line of JSON for each. Exit code 69 without a GPU.
//
//   gpu_first_launches [--watch SECONDS]     (default: 1.5)
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "benchmarks/first_launches.h"
#include "benchmarks/forked.h"
#include "benchmarks/kernel_calls.h"
#include "common/program_main.h"
#include "common/text.h"
#include "cuda/cublas.h"
#include "cuda/device_arena.h"
#include "kernels/cuda/kernels.h"

namespace {

constexpr double kTimeoutS = 100;
constexpr int kProductSize = 256;
constexpr std::uint64_t kProductBytes = 3 * kProductSize * kProductSize * 2;

void check_blas(int status, const char* what) {
  if (status != 0) throw rp::Error(rp::ExitCode::kUserError, rp::cat("cuBLAS: ", what, " gave ", status));
}

// Returns the launch of a product, which uses `handle`.
rp::FirstLaunch product(const rp::Cublas& cublas, void* handle, CUdeviceptr data) {
  return {"cuBLAS product", [&cublas, handle, data](CUstream stream) {
            const float one = 1, zero = 0;
            void* const a = reinterpret_cast<void*>(data);
            void* const c = reinterpret_cast<void*>(data + 2 * kProductBytes / 3);
            check_blas(cublas.set_stream(handle, stream), "setting a stream");
            check_blas(cublas.gemm_ex(handle, rp::BlasForm::kPlain, rp::BlasForm::kPlain, kProductSize, kProductSize,
                                      kProductSize, &one, a, rp::BlasType::kBFloat16, kProductSize, a,
                                      rp::BlasType::kBFloat16, kProductSize, &zero, c, rp::BlasType::kBFloat16,
                                      kProductSize, rp::BlasCompute::kFloat32, rp::kBlasAnyAlgorithm),
                       "a product");
          }};
}

void print_times(bool is_beside, double watch_s) {
  const rp::CudaContext context = rp::CudaContext::open(rp::cuda_driver(), "");
  const rp::KernelCalls kernels(context, rp::cuda::kernel_table(), {.tokens = 64, .vocabulary = 1024});
  rp::DeviceArena arena(context, kProductBytes);
  const auto data = reinterpret_cast<CUdeviceptr>(arena.allocate(kProductBytes, rp::MemoryUse::kInputs));
  std::vector<rp::FirstLaunch> launches;
  for (const rp::KernelCalls::Call& call : kernels.calls()) launches.push_back({call.kernel, call.enqueue});
  const auto print = [&](const std::vector<rp::FirstLaunch>& list) {
    for (const rp::FirstLaunchTime& time : rp::time_first_launches(context, list, is_beside ? watch_s : 0)) {
      const nlohmann::ordered_json line = {{"launch", time.what},
                                           {"is_beside", is_beside},
                                           {"first_ms", time.first_ms},
                                           {"again_ms", time.again_ms},
                                           {"was_held_up", time.was_held_up},
                                           {"was_held_up_again", time.was_held_up_again}};
      std::cout << line.dump() << "\n" << std::flush;
    }
  };
  print(launches);
  const rp::FoundCublas cublas = rp::load_cublas("", rp::cublas_name());
  if (!cublas.table) throw rp::Error(rp::ExitCode::kNoResource, cublas.problem);
  void* handle = nullptr;  // not destroyed, because that is not to be measured
  print({{"cuBLAS handle", [&](CUstream) {
            if (handle == nullptr) check_blas(cublas.table->create(&handle), "making a handle");
          }}});
  print({product(*cublas.table, handle, data)});
}

int measure(const std::vector<std::string>& arguments) {
  double watch_s = 1.5;
  if (!arguments.empty()) {
    watch_s = arguments.size() == 2 && arguments[0] == "--watch" ? std::atof(arguments[1].c_str()) : 0;
    if (watch_s <= 0) throw rp::Error(rp::ExitCode::kUsage, "usage: gpu_first_launches [--watch SECONDS]");
  }
  for (const bool is_beside : {false, true}) {
    rp::Forked process([&] { print_times(is_beside, watch_s); });
    if (const int code = process.join(rp::Deadline::after_seconds(kTimeoutS)); code != 0) return code;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  // As rp-launch does, so that a stream that waits does not hold up another one in the same
  // hardware queue.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  return rp::run_program("gpu_first_launches", [&] { return measure({argv + 1, argv + argc}); });
}
