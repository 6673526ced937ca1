// cuda/cuda_device.h
// Implements Device on an NVIDIA GPU: one allocation of its memory, a stream of each kind, and
// signals by events or words.
//
// Owned by the worker. All memory that it returns must be freed, and its streams drained, before it
// is destroyed. The driver must outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "cuda/context.h"
#include "cuda/cuda_stream.h"
#include "cuda/device_arena.h"
#include "cuda/pinned_memory.h"
#include "cuda/pinned_store.h"
#include "device/device.h"

namespace rp {

// How the GPUs of workers wait for each other: by stream memory operations on words of the store,
// or by CUDA IPC events.
enum class GpuSignals { kWords, kEvents };

struct CudaDeviceOptions {
  std::string uuid{};              // empty: the first GPU that this process sees
  std::uint64_t memory_bytes = 0;  // for this worker; 0: its share of the free memory, minus margin_bytes()
  int num_sharers = 1;             // workers of the run on this GPU
  std::uint64_t host_bytes = 0;    // of host memory that will be registered, if that is known
  GpuSignals signals = GpuSignals::kWords;
  bool exchanges_gradients = false;  // with the GPUs of other nodes, through NCCL
  PinnedStoreOptions registration{};
};

class CudaDevice : public Device {
 public:
  // Memory that each worker leaves to the driver, LibTorch's libraries and other programs if no
  // size is given. The GPU's page tables for registered host memory need 8 more bytes for each page
  // of 4096.
  static constexpr std::uint64_t kMarginBytes = std::uint64_t{1} << 30;
  // NCCL's own buffers, for a communicator with a few other nodes. An estimate: it was never measured.
  static constexpr std::uint64_t kNcclBytes = std::uint64_t{512} << 20;
  [[nodiscard]] static std::uint64_t margin_bytes(const CudaDeviceOptions& options) {
    return kMarginBytes + options.host_bytes / 4096 * 8 + (options.exchanges_gradients ? kNcclBytes : 0);
  }

  // Throws rp::Error (kNoResource) with what is missing.
  CudaDevice(const CudaDriver& driver, const CudaDeviceOptions& options, PinnedStore::Warn warn);
  ~CudaDevice() override;

  [[nodiscard]] std::string name() const override { return name_; }
  // Uploads to the memory run after everything that is enqueued on the compute stream so far. Freed
  // memory can be allocated again at once. REQUIRES: when the memory is freed, all streams except
  // the compute stream have finished using it, or the compute stream waits until they have. Throws
  // as take() does.
  [[nodiscard]] DeviceMemory allocate(std::uint64_t bytes, MemoryUse use) override;
  [[nodiscard]] DeviceMemoryPeaks memory_peaks() const override;
  [[nodiscard]] Stream& stream(StreamKind kind) override;
  [[nodiscard]] Stream* exchange_stream() override { return exchange_ ? &*exchange_ : nullptr; }
  void bind_thread() const override { context_.make_current(); }
  [[nodiscard]] std::unique_ptr<Event> make_event() override;
  void check() override { compute_.check(); }
  void stop() override;
  void resume() override;
  // Cancels the calls that are enqueued for the host. If the GPU does not finish its work, its
  // resources are left to the end of the process.
  void abandon() override;
  void leave_to_process_end() override;
  // Registers the store. Must be called once, before any copy. With --check-consistency the host
  // reads the outputs after each signal, so the result is a HostSignals.
  [[nodiscard]] std::unique_ptr<OutputSignals> connect(Store& store, int number) override;

  // For the executor: the context and stream that it computes with, the stream that its results are
  // copied on, and the memory.
  [[nodiscard]] const CudaContext& context() const { return context_; }
  [[nodiscard]] CUstream compute_stream() const { return compute_.get(); }
  [[nodiscard]] CUstream download_stream() const { return download_.get(); }  // for outputs
  [[nodiscard]] DeviceArena& arena() { return arena_; }
  // For tests and reports, after connect(): which parts of the store are registered, and the
  // progress of the registration.
  [[nodiscard]] const PinnedMemory& pinned() const { return pinned_; }
  [[nodiscard]] const PinnedStore& pinned_store() const { return *pinned_store_; }
  // Allocates from arena(), where the memory must be freed. Throws rp::Error (kNoResource) with the
  // uses that occupy the memory and what to change.
  [[nodiscard]] std::byte* take(std::uint64_t bytes, MemoryUse use);

 private:
  [[nodiscard]] static std::uint64_t arena_bytes(const CudaContext& context, const CudaDeviceOptions& options);
  [[nodiscard]] CudaStream::Memory memory();
  [[nodiscard]] MemoryLimit memory_limit() const;
  [[nodiscard]] std::vector<CudaStream*> streams() {
    std::vector<CudaStream*> all = {&upload_parameters_, &upload_activations_, &download_, &download_gradients_,
                                    &compute_};
    if (exchange_) all.push_back(&*exchange_);
    return all;
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
  std::optional<CudaStream> exchange_;
  std::optional<PinnedStore> pinned_store_;  // from connect() on
  bool gives_back_ = true;
  Mutex mutex_;
  CudaEvent computed_ RP_GUARDED_BY(mutex_);  // the end of the compute stream's work at the last allocation
};

}  // namespace rp
