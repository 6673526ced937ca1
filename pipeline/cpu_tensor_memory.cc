#include "pipeline/cpu_tensor_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

namespace rp {

namespace {

// Below it malloc takes memory from its heaps, and the book-keeping of an arena would cost more than it saves.
constexpr std::size_t kSmallBytes = std::size_t{32} << 10;

class CpuTensorMemory final : public c10::Allocator {
 public:
  explicit CpuTensorMemory(std::shared_ptr<CpuArena> arena) : arena_(std::move(arena)) { instance_ = this; }

  c10::DataPtr allocate(std::size_t bytes) override {
    void* const data = bytes < kSmallBytes ? c10::alloc_cpu(bytes) : arena_->allocate(bytes, MemoryUse::kTensors);
    return {data, data, &CpuTensorMemory::release, c10::kCPU};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &CpuTensorMemory::release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  [[nodiscard]] const std::shared_ptr<CpuArena>& arena() const { return arena_; }

 private:
  // LibTorch's kernels free by it what they took before the arena was there, too.
  static void release(void* data) {
    if (instance_->arena_->holds(data)) {
      instance_->arena_->free(static_cast<std::byte*>(data));
    } else {
      c10::free_cpu(data);
    }
  }

  static inline CpuTensorMemory* instance_ = nullptr;
  const std::shared_ptr<CpuArena> arena_;
};

}  // namespace

std::shared_ptr<CpuArena> install_cpu_tensor_memory() {
  // Never destroyed: static tensors of LibTorch's are freed after everything else.
  static const auto* const memory = [] {
    auto* const made = new CpuTensorMemory(std::make_shared<CpuArena>());
    c10::SetCPUAllocator(made);
    return made;
  }();
  return memory->arena();
}

}  // namespace rp
