#include "pipeline/torch_worker/cpu_tensor_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

namespace rp {

namespace {

// For smaller tensors malloc uses its heaps, and the book-keeping of an arena would cost more than
// it saves.
constexpr std::size_t kSmallBytes = std::size_t{32} << 10;

class CpuTensorMemory final : public c10::Allocator {
 public:
  explicit CpuTensorMemory(std::shared_ptr<CpuMemory> memory) : memory_(std::move(memory)) { instance_ = this; }

  c10::DataPtr allocate(std::size_t bytes) override {
    void* const data = bytes < kSmallBytes ? c10::alloc_cpu(bytes) : memory_->allocate_tensor(bytes);
    return {data, data, &CpuTensorMemory::release, c10::kCPU};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &CpuTensorMemory::release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  [[nodiscard]] const std::shared_ptr<CpuMemory>& memory() const { return memory_; }

 private:
  // LibTorch's kernels also call this to free memory that was allocated before the arena existed.
  static void release(void* data) {
    if (instance_->memory_->is_tensor(data)) {
      instance_->memory_->free_tensor(static_cast<std::byte*>(data));
    } else {
      c10::free_cpu(data);
    }
  }

  static inline CpuTensorMemory* instance_ = nullptr;
  const std::shared_ptr<CpuMemory> memory_;
};

}  // namespace

std::shared_ptr<CpuMemory> install_cpu_tensor_memory() {
  // Never destroyed, because static tensors of LibTorch are freed after everything else.
  static const auto* const allocator = [] {
    auto* const made = new CpuTensorMemory(std::make_shared<CpuMemory>());
    c10::SetCPUAllocator(made);
    return made;
  }();
  return allocator->memory();
}

}  // namespace rp
