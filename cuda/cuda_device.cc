#include "cuda/cuda_device.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/text.h"
#include "cuda/event_signals.h"
#include "cuda/word_signals.h"

namespace rp {

CudaDevice::CudaDevice(const CudaDriver& driver, const CudaDeviceOptions& options, PinnedStore::Warn warn)
    : options_(options),
      warn_(std::move(warn)),
      context_(CudaContext::open(driver, options.uuid)),
      name_(cat("cuda (", context_.name(), ")")),
      arena_(context_, arena_bytes(context_, options)),
      pinned_(context_),
      upload_parameters_(context_, memory(), /*is_urgent=*/false),
      upload_activations_(context_, memory(), true),
      download_(context_, memory(), true),
      download_gradients_(context_, memory(), false),
      compute_(context_, memory(), false),
      computed_(context_) {
  if (options.exchanges_gradients) exchange_.emplace(context_, memory(), /*is_urgent=*/true);
}

// The members return their resources to the driver in this thread, so it makes the context current.
CudaDevice::~CudaDevice() {
  try {
    context_.make_current();
  } catch (const Error&) {
    context_.abandon();
  }
  const auto all = streams();
  if (gives_back_ && context_.is_abandoned() &&
      std::all_of(all.begin(), all.end(), [](const CudaStream* stream) { return stream->is_idle(); })) {
    context_.recover();
  }
}

void CudaDevice::stop() {
  for (CudaStream* stream : streams()) stream->stop_calls();
}

void CudaDevice::resume() {
  for (CudaStream* stream : streams()) stream->resume_calls();
}

void CudaDevice::abandon() {
  for (CudaStream* stream : streams()) stream->cancel_calls();
  context_.abandon();
  if (pinned_store_) pinned_store_->stop();
}

void CudaDevice::leave_to_process_end() {
  gives_back_ = false;
  context_.abandon();
  if (pinned_store_) pinned_store_->stop();
}

std::uint64_t CudaDevice::arena_bytes(const CudaContext& context, const CudaDeviceOptions& options) {
  if (options.memory_bytes > 0) return options.memory_bytes;
  // The other workers allocate their shares sooner or later. So the free memory is only an upper
  // bound for the share of this worker.
  const CudaContext::MemoryInfo memory = context.memory_info();
  const std::uint64_t share =
      options.num_sharers > 1
          ? std::min(memory.free_bytes, memory.total_bytes / static_cast<std::uint64_t>(options.num_sharers))
          : memory.free_bytes;
  const std::uint64_t margin = margin_bytes(options);
  if (share <= margin) {
    throw Error(ExitCode::kNoResource, cat("GPU ", context.uuid(), " has only ", bytes_text(share),
                                           " of memory free for this worker; end what else runs on it (nvidia-smi), or "
                                           "say with --gpu-memory how much to take"));
  }
  return (share - margin) / 4096 * 4096;
}

// Memory is registered while streams already copy. A copy that meets unregistered memory reports it
// to the PinnedStore.
CudaStream::Memory CudaDevice::memory() {
  return {.arena = arena_, .pinned = pinned_, .on_unregistered = [this](const std::byte* data) {
            if (pinned_store_) pinned_store_->notice_unregistered(data);
          }};
}

MemoryLimit CudaDevice::memory_limit() const {
  return {.owner = context_.uuid(),
          .is_asked = options_.memory_bytes > 0,
          .num_sharers = options_.num_sharers,
          .margin_bytes = margin_bytes(options_)};
}

std::byte* CudaDevice::take(std::uint64_t bytes, MemoryUse use) {
  std::byte* const data = arena_.allocate(bytes, use);
  if (data == nullptr) throw Error(ExitCode::kNoResource, spent_text(memory_limit(), arena_.state(), bytes, use));
  return data;
}

DeviceMemory CudaDevice::allocate(std::uint64_t bytes, MemoryUse use) {
  if (bytes == 0) return {};
  DeviceMemory memory(take(bytes, use), bytes, [this](std::byte* given, std::uint64_t) { arena_.free(given); });
  let_uploads_wait_for_compute();
  return memory;
}

// LibTorch's tensors and the worker's own buffers are freed as soon as the last operation on them
// is enqueued. So computations that are enqueued may still use memory that is allocated again.
void CudaDevice::let_uploads_wait_for_compute() {
  MutexLock lock(mutex_);
  compute_.record(computed_);
  upload_parameters_.wait_event(computed_);
  upload_activations_.wait_event(computed_);
}

DeviceMemoryPeaks CudaDevice::memory_peaks() const {
  DeviceMemoryPeaks peaks = arena_.peaks();
  for (const CudaStream* stream : {&upload_parameters_, &upload_activations_, &download_, &download_gradients_}) {
    peaks.staged_bytes += stream->staged_bytes();
  }
  return peaks;
}

Stream& CudaDevice::stream(StreamKind kind) {
  switch (kind) {
    case StreamKind::kUploadParameters: return upload_parameters_;
    case StreamKind::kUploadActivations: return upload_activations_;
    case StreamKind::kDownload: return download_;
    case StreamKind::kDownloadGradients: return download_gradients_;
    case StreamKind::kCompute: return compute_;
  }
  RP_ASSERT(false);
}

std::unique_ptr<Event> CudaDevice::make_event() { return std::make_unique<CudaEvent>(context_); }

std::unique_ptr<OutputSignals> CudaDevice::connect(Store& store, int number) {
  pinned_store_.emplace(pinned_, store, warn_, options_.registration);
  if (store.checks_consistency())
    return std::make_unique<HostSignals>(store, number);  // the host reads the outputs after the signal
  if (options_.signals == GpuSignals::kEvents) return std::make_unique<EventSignals>(context_, store, number);
  return std::make_unique<WordSignals>(context_, pinned_, store, number);
}

}  // namespace rp
