#include "pipeline/cpu_torch_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <utility>

#include "common/clock.h"
#include "coordinator/float_format.h"
#include "optimizer/update.h"
#include "pipeline/tensors.h"

namespace rp {

CpuTorchDevice::CpuTorchDevice(std::shared_ptr<CpuArena> arena, int num_threads, std::uint64_t max_elements)
    : arena_(std::move(arena)), team_(num_threads), partial_sums_(num_partial_sums(max_elements)) {}

at::Generator CpuTorchDevice::generator() const { return at::detail::getDefaultCPUGenerator(); }

void CpuTorchDevice::enter_thread(int num_threads) { at::set_num_threads(num_threads); }

ResultPage CpuTorchDevice::make_page(std::uint64_t bytes) {
  pages_.push_back(std::make_unique<std::byte[]>(bytes));
  return {.device = pages_.back().get(), .host = pages_.back().get(), .bytes = bytes};
}

TorchDevice::TensorBytes CpuTorchDevice::take_tensor_bytes() {
  const ArenaBook::Level level = arena_->take_tensor_level();
  return {.now = level.bytes, .most = level.most_bytes};
}

void CpuTorchDevice::note_output(const at::Tensor& tensor) {
  if (tensor.defined()) arena_->count_as(static_cast<const std::byte*>(tensor.storage().data()), MemoryUse::kOutputs);
}

void CpuTorchDevice::clear(void* data, std::uint64_t bytes) { std::memset(data, 0, bytes); }
void CpuTorchDevice::add_time(std::int64_t* total) { *total += now_ns(); }
void CpuTorchDevice::subtract_time(std::int64_t* total) { *total -= now_ns(); }

void CpuTorchDevice::round_gradient(const GradientRounding& rounding) {
  const c10::NoGradGuard no_grad;
  const auto count = static_cast<std::int64_t>(rounding.num_elements);
  at::Tensor gradient = tensor_over(rounding.gradient, {count}, scalar_type_of(rounding.dtype));
  gradient.copy_(tensor_over(reinterpret_cast<const std::byte*>(rounding.accumulator), {count}, at::kFloat));
  const void* const pointer = rounding.gradient;
  *rounding.square_sum = sum_of_squares({.uses = &pointer,
                                         .num_uses = 1,
                                         .format = float_format_of(rounding.dtype),
                                         .num_elements = rounding.num_elements},
                                        partial_sums_, team_);
}

}  // namespace rp
