#include "cuda/device_arena.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/text.h"

namespace rp {

namespace {

using Fit = BlockAllocator::Fit;

Fit fit_of(MemoryUse use) {
  return use == MemoryUse::kTensors || use == MemoryUse::kOutputs ? Fit::kBestEnd : Fit::kFirst;
}

}  // namespace

DeviceArena::DeviceArena(const CudaContext& context, std::uint64_t bytes) : context_(context), bytes_(bytes) {
  context.make_current();
  CUdeviceptr base = 0;
  const CUresult result = context.driver().mem_alloc(&base, bytes);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    throw Error(ExitCode::kNoResource,
                cat("GPU ", context.uuid(), " has ", bytes_text(context.free_bytes()), " of memory free, and ", bytes_text(bytes),
                    " are wanted; give less with --gpu-memory, or end what else runs on it (nvidia-smi)"));
  }
  context.check(result, "taking the GPU's memory");
  base_ = reinterpret_cast<std::byte*>(base);
  blocks_.extend(bytes / 4096 * 4096);
  peaks_.limit_bytes = bytes;
}

DeviceArena::~DeviceArena() { (void)context_.driver().mem_free(reinterpret_cast<CUdeviceptr>(base_)); }

void DeviceArena::add(MemoryUse use, std::uint64_t bytes) {
  const auto number = static_cast<std::size_t>(use);
  by_use_[number] += bytes;
  peaks_.most_by_use[number] = std::max(peaks_.most_by_use[number], by_use_[number]);
  peaks_.most_bytes = std::max(peaks_.most_bytes, blocks_.used_bytes());
  if (use == MemoryUse::kTensors) most_tensor_bytes_ = std::max(most_tensor_bytes_, by_use_[number]);
}

std::byte* DeviceArena::allocate(std::uint64_t bytes, MemoryUse use) {
  MutexLock lock(mutex_);
  const auto offset = blocks_.allocate(bytes, fit_of(use));
  if (!offset) return nullptr;
  use_of_.emplace(*offset, use);
  add(use, blocks_.bytes_at(*offset));
  return base_ + *offset;
}

void DeviceArena::free(std::byte* data) {
  MutexLock lock(mutex_);
  const auto offset = static_cast<std::uint64_t>(data - base_);
  const auto use = use_of_.find(offset);
  RP_ASSERT(use != use_of_.end());
  by_use_[static_cast<std::size_t>(use->second)] -= blocks_.bytes_at(offset);
  use_of_.erase(use);
  blocks_.free(offset);
}

void DeviceArena::count_as(const std::byte* data, MemoryUse use) {
  MutexLock lock(mutex_);
  const auto offset = static_cast<std::uint64_t>(data - base_);
  const auto place = holds(data) ? use_of_.find(offset) : use_of_.end();
  if (place == use_of_.end()) return;
  const std::uint64_t bytes = blocks_.bytes_at(offset);
  by_use_[static_cast<std::size_t>(place->second)] -= bytes;
  place->second = use;
  add(use, bytes);
}

MemoryState DeviceArena::state() const {
  MutexLock lock(mutex_);
  return {.limit_bytes = bytes_, .bytes_by_use = by_use_, .largest_free_bytes = blocks_.largest_free()};
}

DeviceMemoryPeaks DeviceArena::peaks() const {
  MutexLock lock(mutex_);
  return peaks_;
}

DeviceArena::Level DeviceArena::take_tensor_level() {
  MutexLock lock(mutex_);
  const std::uint64_t bytes = by_use_[static_cast<std::size_t>(MemoryUse::kTensors)];
  return {.bytes = bytes, .most_bytes = std::exchange(most_tensor_bytes_, bytes)};
}

}  // namespace rp
