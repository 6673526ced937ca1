// cuda/context.h
// Opens one GPU of this process: its primary context, which LibTorch uses too, and events in it.
//
// A thread must make the context current before it calls the driver. All code in cuda/ does so
// itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "cuda/driver.h"

namespace rp {

class CudaContext {
 public:
  // Opens the GPU with this UUID ("GPU-..."), or the first one that this process sees if `uuid` is
  // empty. The driver must outlive the context. Throws rp::Error (kNoResource) if this process does
  // not see that GPU, or if the context cannot be created.
  static CudaContext open(const CudaDriver& driver, const std::string& uuid);

  CudaContext(CudaContext&& other) noexcept;
  CudaContext& operator=(CudaContext&&) = delete;
  ~CudaContext();

  // Makes the context current in the calling thread. Does not call the driver if it is current
  // already.
  void make_current() const;

  [[nodiscard]] const CudaDriver& driver() const { return *driver_.load(std::memory_order_acquire); }
  [[nodiscard]] const std::string& uuid() const { return uuid_; }
  [[nodiscard]] std::string name() const;
  [[nodiscard]] CUdevice device() const { return device_; }
  // Returns 0 for an attribute that the driver does not know.
  [[nodiscard]] int attribute(CUdevice_attribute attribute) const;
  // The GPU's memory, counted over all processes.
  struct MemoryInfo {
    std::uint64_t free_bytes = 0;
    std::uint64_t total_bytes = 0;
  };
  [[nodiscard]] MemoryInfo memory_info() const;
  [[nodiscard]] std::uint64_t free_bytes() const { return memory_info().free_bytes; }

  // abandon(): from now on no resource is returned to the driver, because the driver would wait for
  // the work of a GPU that may never finish. The end of the process frees the resources. recover():
  // reverts this after the GPU has finished its work after all. Both may be called by any thread.
  void abandon() const { driver_.store(keeping_.get(), std::memory_order_release); }
  void recover() const { driver_.store(whole_, std::memory_order_release); }
  [[nodiscard]] bool is_abandoned() const { return &driver() == keeping_.get(); }

  // Throws rp::Error as check_cuda() does, with the GPU's name at the beginning.
  void check(CUresult result, const char* what) const {
    if (result != CUDA_SUCCESS) fail(result, what);
  }

 private:
  CudaContext(const CudaDriver& driver, CUdevice device, std::string uuid, CUcontext context);
  [[noreturn]] void fail(CUresult result, const char* what) const;

  const CudaDriver* whole_;
  std::unique_ptr<const CudaDriver> keeping_;      // a copy whose functions that free resources do nothing
  mutable std::atomic<const CudaDriver*> driver_;  // whole_ or keeping_.get()
  CUdevice device_;
  std::string uuid_;
  CUcontext context_;
};

// Returns the UUID as nvidia-smi prints it: "GPU-8f6b...".
[[nodiscard]] std::string uuid_text(const CUuuid& uuid);

// An event without timing. Move-only; the context must outlive it.
class CudaEventHandle {
 public:
  explicit CudaEventHandle(const CudaContext& context, unsigned flags = CU_EVENT_DISABLE_TIMING);
  // Opens an event of another process. Throws rp::Error.
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
