#include "plugin/cuda_torch_device.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/ops/square.h>
#include <ATen/ops/sum.h>
#include <c10/core/GradMode.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>

#include "common/system/clock.h"
#include "common/text.h"
#include "kernels/cuda/kernels.h"
#include "kernels/gpu_kernels.h"
#include "models/gpu_algorithms.h"
#include "models/layers/scalar_type.h"
#include "pipeline/description/tensors.h"

namespace rp {

namespace {

// LibTorch's tensors come from the worker's arena. All of them are used on one stream, so freed
// memory may be reused at once. Memory that other streams still read is kept allocated until they
// have finished.
void install_allocator(CudaDevice& device) {
  const auto allocate = [&device](std::size_t bytes, int, cudaStream_t) -> void* {
    return device.take(bytes, MemoryUse::kTensors);
  };
  const auto free = [&device](void* data, std::size_t, int, cudaStream_t) {
    device.arena().free(static_cast<std::byte*>(data));
  };
  namespace pluggable = torch::cuda::CUDAPluggableAllocator;
  pluggable::changeCurrentAllocator(pluggable::createCustomAllocator(allocate, free));
}

// If LibTorch was asked for a GPU before its CUDA libraries were loaded, it has none for the rest
// of the process.
void check_hooks() {
  if (at::globalContext().hasCUDA()) return;
  throw Error(ExitCode::kUsage,
              "LibTorch was asked for GPUs before this program made its rp::Session, which loads LibTorch's part for "
              "them; make the Session first in main(), before torch::manual_seed() and the like");
}

void install_kernels() {
  static const models::GpuKernels kernels = [] {
    models::GpuKernels table = cuda::kernel_table();
    const int generation = at::cuda::getDeviceProperties(0)->major;
    table.libtorch_groups_bf16 = generation == 9 || generation == 10;
    table.current_stream = []() -> void* { return c10::cuda::getCurrentCUDAStream().stream(); };
    return table;
  }();
  models::set_gpu_kernels(&kernels);
}

void choose_algorithms(const PluginSettings& settings) {
  models::choose_gpu_algorithms(settings.allows_nondeterminism);
  at::globalContext().setAllowFP16AccumulationCuBLAS(settings.fp16_accumulation);
}

}  // namespace

CudaTorchDevice::CudaTorchDevice(CudaDevice& device, const PluginSettings& settings) : device_(device) {
  // LibTorch's allocator, streams and kernels are all set up for device 0.
  if (const CUdevice number = device.context().device(); number != 0) {
    throw Error(ExitCode::kUsage,
                cat("GPU ", device.context().uuid(), " is CUDA device ", number,
                    " of this process, and a worker's is device 0; leave CUDA_VISIBLE_DEVICES to rp-launch"));
  }
  check_hooks();
  install_allocator(device);
  at::globalContext().lazyInitDevice(c10::kCUDA);
  install_kernels();
  choose_algorithms(settings);
}

CudaTorchDevice::~CudaTorchDevice() {
  models::set_gpu_kernels(nullptr);
  at::cuda::clearCublasWorkspaces();
}

at::Generator CudaTorchDevice::generator() const { return at::cuda::detail::getDefaultCUDAGenerator(0); }

void CudaTorchDevice::enter_thread(int num_threads) {
  at::set_num_threads(num_threads);
  c10::cuda::set_device(0);
  c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(device_.compute_stream(), 0));
}

ResultPage CudaTorchDevice::make_page(std::uint64_t bytes) {
  const MirroredMemory& page = pages_.emplace_back(device_, bytes, MemoryUse::kResults);
  return {.device = page.data(), .host = page.host(), .bytes = bytes};
}

void CudaTorchDevice::download(const ResultPage& page) {
  const auto of_page = [&](const MirroredMemory& memory) { return memory.data() == page.device; };
  std::ranges::find_if(pages_, of_page)->download();
}

TorchDevice::TensorBytes CudaTorchDevice::take_tensor_bytes() {
  const ArenaBook::Level level = device_.arena().take_tensor_level();
  return {.now = level.bytes, .peak = level.peak_bytes};
}

void CudaTorchDevice::note_output(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  device_.arena().count_as(static_cast<const std::byte*>(tensor.storage().data()), MemoryUse::kOutputs);
}

void CudaTorchDevice::clear(void* data, std::uint64_t bytes) {
  context().make_current();
  context().check(
      context().driver().memset_d8_async(reinterpret_cast<CUdeviceptr>(data), 0, bytes, device_.compute_stream()),
      "clearing memory");
}

void CudaTorchDevice::add_time(std::int64_t* total) { cuda::add_time(total, 1, device_.compute_stream()); }
void CudaTorchDevice::subtract_time(std::int64_t* total) { cuda::add_time(total, -1, device_.compute_stream()); }

void CudaTorchDevice::note_past(std::int64_t device_ns) {
  clock_offset_ns_ = std::min(clock_offset_ns_, now_ns() - device_ns);
}

void CudaTorchDevice::round_gradient(const GradientRounding& rounding) {
  const auto count = static_cast<std::int64_t>(rounding.num_elements);
  if (!is_working_dtype(rounding.dtype)) {  // our kernels support no other types
    const c10::NoGradGuard no_grad;
    const at::Tensor gradient = tensor_over(rounding.gradient, {count}, scalar_type_of(rounding.dtype), device());
    gradient.copy_(
        tensor_over(reinterpret_cast<const std::byte*>(rounding.accumulator), {count}, at::kFloat, device()));
    tensor_over(reinterpret_cast<const std::byte*>(rounding.square_sum), {}, at::kDouble, device())
        .copy_(at::sum(at::square(gradient.to(at::kDouble))));
    return;
  }
  const auto bytes = static_cast<std::uint64_t>(models::num_square_sums(count)) * sizeof(double);
  if (partial_sums_.bytes() < bytes) {
    partial_sums_ = {};
    partial_sums_ = device_.allocate(bytes, MemoryUse::kResults);
  }
  cuda::round_gradient(rounding.dtype,
                       {.from = rounding.accumulator,
                        .to = rounding.gradient,
                        .count = count,
                        .partial_sums = reinterpret_cast<double*>(partial_sums_.data()),
                        .squares = rounding.square_sum},
                       device_.compute_stream());
}

}  // namespace rp
