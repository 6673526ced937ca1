#include "pipeline/torch_worker/cpu_tensor_memory.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace rp::test {
namespace {

constexpr std::int64_t kLarge = 1 << 20;

// LibTorch's allocator is global, so all later tests of this program use it, too, as a worker does.
TEST(CpuTensorMemory, HasLargeTensorsAndLeavesSmallOnesToMalloc) {
  const at::Tensor before = at::ones({kLarge}, at::kByte);
  const std::shared_ptr<CpuMemory> memory = install_cpu_tensor_memory();
  EXPECT_EQ(install_cpu_tensor_memory(), memory) << "once a process";
  EXPECT_FALSE(memory->is_tensor(before.data_ptr()));
  const std::uint64_t base = memory->take_tensor_level().bytes;
  at::Tensor large = at::ones({kLarge}, at::kByte);
  const at::Tensor small = at::ones({100}, at::kByte), empty = at::empty({0}, at::kByte);
  EXPECT_TRUE(memory->is_tensor(large.data_ptr()));
  EXPECT_FALSE(memory->is_tensor(small.data_ptr()));
  EXPECT_EQ(empty.numel(), 0);
  EXPECT_EQ(memory->take_tensor_level().bytes, base + kLarge);
  std::thread([tensor = std::move(large)]() mutable { tensor.reset(); }).join();
  EXPECT_EQ(memory->take_tensor_level().bytes, base) << "another thread gives it back";
}

TEST(CpuTensorMemory, TakesBackWhatKernelsTookWithoutATensor) {
  const std::shared_ptr<CpuMemory> memory = install_cpu_tensor_memory();
  c10::Allocator* const allocator = c10::GetAllocator(c10::kCPU);
  const std::uint64_t base = memory->take_tensor_level().bytes;
  void* const large = allocator->raw_allocate(kLarge);
  void* const small = allocator->raw_allocate(100);
  EXPECT_EQ(memory->take_tensor_level().bytes, base + kLarge);
  allocator->raw_deallocate(large);
  allocator->raw_deallocate(small);
  EXPECT_EQ(memory->take_tensor_level().bytes, base);
}

TEST(CpuTensorMemory, CountsOutputsThatWaitForTheirDownload) {
  const std::shared_ptr<CpuMemory> memory = install_cpu_tensor_memory();
  const std::uint64_t base = memory->take_tensor_level().bytes;
  const at::Tensor output = at::ones({kLarge}, at::kByte);
  memory->count_tensor_as(static_cast<const std::byte*>(output.storage().data()), MemoryUse::kOutputs);
  EXPECT_EQ(memory->take_tensor_level().bytes, base);
  EXPECT_GE(memory->peaks().peak_by_use[MemoryUse::kOutputs], static_cast<std::uint64_t>(kLarge));
}

}  // namespace
}  // namespace rp::test
