// cuda/cuda_device.h
// A GPU of NVIDIA's as a device: one allocation of its memory, a stream of each kind, events and words for those who
// wait.
//
// Owned by the worker; what it gives must be given back before it ends, and its streams be drained. The driver must
// outlive it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/mutex.h"
#include "cuda/context.h"
#include "cuda/cuda_stream.h"
#include "cuda/device_arena.h"
#include "cuda/pinned_memory.h"
#include "cuda/pinned_store.h"
#include "device/device.h"

namespace rp {

// How workers' GPUs wait for each other: stream memory operations on the store's words, or CUDA IPC events.
enum class GpuSignals { kWords, kEvents };

struct CudaDeviceOptions {
  std::string uuid{};              // empty: the first GPU that this process sees
  std::uint64_t memory_bytes = 0;  // what the worker may take; 0: its share of what is free, but for margin_bytes()
  int num_sharers = 1;             // workers of the run on this GPU
  std::uint64_t host_bytes = 0;    // of the host's memory that will be registered, as far as that is known
  GpuSignals signals = GpuSignals::kWords;
  PinnedStoreOptions registration{};
};

class CudaDevice : public Device {
 public:
  // Left by each worker to the driver, LibTorch's libraries and other programs where nobody says how much memory to
  // take: and what the GPU's page tables need for registered memory of the host's, 8 bytes for each page of 4096.
  static constexpr std::uint64_t kMarginBytes = std::uint64_t{1} << 30;
  [[nodiscard]] static std::uint64_t margin_bytes(std::uint64_t host_bytes) {
    return kMarginBytes + host_bytes / 4096 * 8;
  }

  // Throws rp::Error (kNoResource) with what is missing.
  CudaDevice(const CudaDriver& driver, const CudaDeviceOptions& options, PinnedStore::Warn warn);
  ~CudaDevice() override;

  [[nodiscard]] std::string name() const override { return name_; }
  // Uploads to it come after what compute was given before. It is given back at once: REQUIRES: what else used it than
  // the compute stream is done, or the compute stream comes after that. Throws as take().
  [[nodiscard]] DeviceMemory allocate(std::uint64_t bytes, MemoryUse use) override;
  [[nodiscard]] DeviceMemoryPeaks memory_peaks() const override;
  [[nodiscard]] Stream& stream(StreamKind kind) override;
  [[nodiscard]] std::unique_ptr<Event> make_event() override;
  void check() override { compute_.check(); }
  void stop() override;
  // What the host is still to be told is not told, and what a GPU that does not end its work holds is left to the end
  // of the process.
  void abandon() override;
  void leave_to_process_end() override;
  // Once, before any copy. Registers the store. With --check-consistency the host reads what is signalled: HostSignals.
  [[nodiscard]] std::unique_ptr<OutputSignals> connect(Store& store, int number) override;

  // For the executor: what the device computes on, and with, and where its results are copied.
  [[nodiscard]] const CudaContext& context() const { return context_; }
  [[nodiscard]] CUstream compute_stream() const { return compute_.get(); }
  [[nodiscard]] CUstream download_stream() const { return download_.get(); }  // of outputs
  [[nodiscard]] DeviceArena& arena() { return arena_; }
  // For tests and reports, from connect() on: what of the store is registered, and how far that is.
  [[nodiscard]] const PinnedMemory& pinned() const { return pinned_; }
  [[nodiscard]] const PinnedStore& pinned_store() const { return *pinned_store_; }
  // Of the arena; given back to it. Throws rp::Error (kNoResource) with what has the memory and what to do.
  [[nodiscard]] std::byte* take(std::uint64_t bytes, MemoryUse use);

 private:
  [[nodiscard]] static std::uint64_t arena_bytes(const CudaContext& context, const CudaDeviceOptions& options);
  [[nodiscard]] CudaStream::Memory memory();
  [[nodiscard]] MemoryLimit memory_limit() const;
  [[nodiscard]] std::array<CudaStream*, 5> streams() {
    return {&upload_parameters_, &upload_activations_, &download_, &download_gradients_, &compute_};
  }
  void let_uploads_wait_for_compute();

  const CudaDeviceOptions options_;
  const PinnedStore::Warn warn_;
  const CudaContext context_;
  const std::string name_;
  DeviceArena arena_;
  PinnedMemory pinned_;
  CudaStream upload_parameters_;
  CudaStream upload_activations_;
  CudaStream download_;
  CudaStream download_gradients_;
  CudaStream compute_;
  std::optional<PinnedStore> pinned_store_;  // from connect() on
  bool gives_back_ = true;
  Mutex mutex_;
  CudaEvent computed_ RP_GUARDED_BY(mutex_);  // what compute had been given when memory was taken last
};

}  // namespace rp
