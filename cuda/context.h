// cuda/context.h
// One GPU of this process: its primary context, which is the one that LibTorch uses, too. And events in it.
//
// Threads that call the driver make the context current first; everything in cuda/ does so by itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "cuda/driver.h"

namespace rp {

class CudaContext {
 public:
  // Of the GPU with this UUID ("GPU-..."), or of the first one that this process sees if it is empty. The driver must
  // outlive it. Throws rp::Error (kNoResource) if this process does not see that GPU, or the context cannot be made.
  static CudaContext open(const CudaDriver& driver, const std::string& uuid);

  CudaContext(CudaContext&& other) noexcept;
  CudaContext& operator=(CudaContext&&) = delete;
  ~CudaContext();

  // For the calling thread; no call of the driver where it is that already.
  void make_current() const;

  [[nodiscard]] const CudaDriver& driver() const { return *driver_.load(std::memory_order_acquire); }
  [[nodiscard]] const std::string& uuid() const { return uuid_; }
  [[nodiscard]] std::string name() const;
  [[nodiscard]] CUdevice device() const { return device_; }
  // 0 for one that the driver does not know.
  [[nodiscard]] int attribute(CUdevice_attribute attribute) const;
  // Of the GPU's memory, for all processes.
  struct MemoryInfo {
    std::uint64_t free_bytes = 0;
    std::uint64_t total_bytes = 0;
  };
  [[nodiscard]] MemoryInfo memory_info() const;
  [[nodiscard]] std::uint64_t free_bytes() const { return memory_info().free_bytes; }

  // The GPU may never end what it was given, and for that the driver waits when memory is given back: from now on
  // nothing is, the end of the process does it. recover(): it has ended after all. For any thread.
  void abandon() const { driver_.store(keeping_.get(), std::memory_order_release); }
  void recover() const { driver_.store(whole_, std::memory_order_release); }
  [[nodiscard]] bool is_abandoned() const { return &driver() == keeping_.get(); }

  // Throws rp::Error (check_cuda()) with the GPU's name in front.
  void check(CUresult result, const char* what) const {
    if (result != CUDA_SUCCESS) fail(result, what);
  }

 private:
  CudaContext(const CudaDriver& driver, CUdevice device, std::string uuid, CUcontext context);
  [[noreturn]] void fail(CUresult result, const char* what) const;

  const CudaDriver* whole_;
  std::unique_ptr<const CudaDriver> keeping_;      // the same, but that giving back does nothing
  mutable std::atomic<const CudaDriver*> driver_;  // one of both
  CUdevice device_;
  std::string uuid_;
  CUcontext context_;
};

// "GPU-8f6b..." as nvidia-smi prints it.
[[nodiscard]] std::string uuid_text(const CUuuid& uuid);

// An event without times. Move-only; the context must outlive it.
class CudaEventHandle {
 public:
  explicit CudaEventHandle(const CudaContext& context, unsigned flags = CU_EVENT_DISABLE_TIMING);
  // Another process's. Throws rp::Error.
  static CudaEventHandle open(const CudaContext& context, const CUipcEventHandle& handle);
  CudaEventHandle(CudaEventHandle&& other) noexcept : context_(other.context_), event_(other.event_) {
    other.event_ = nullptr;
  }
  CudaEventHandle& operator=(CudaEventHandle&&) = delete;
  ~CudaEventHandle();

  [[nodiscard]] CUevent get() const { return event_; }

 private:
  CudaEventHandle(const CudaContext& context, CUevent event) : context_(context), event_(event) {}

  const CudaContext& context_;
  CUevent event_ = nullptr;
};

}  // namespace rp
