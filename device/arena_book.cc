#include "device/arena_book.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace rp {

namespace {

using Fit = RangeAllocator::Fit;

Fit fit_of(MemoryUse use) {
  return use == MemoryUse::kTensors || use == MemoryUse::kOutputs ? Fit::kBestEnd : Fit::kFirst;
}

}  // namespace

void ArenaBook::extend(std::uint64_t bytes) {
  MutexLock lock(mutex_);
  ranges_.extend(bytes);
}

std::uint64_t ArenaBook::missing(std::uint64_t bytes) const {
  MutexLock lock(mutex_);
  return ranges_.missing(bytes);
}

void ArenaBook::add(MemoryUse use, std::uint64_t bytes) {
  by_use_[use] += bytes;
  peaks_.peak_by_use[use] = std::max(peaks_.peak_by_use[use], by_use_[use]);
  peaks_.peak_bytes = std::max(peaks_.peak_bytes, ranges_.used_bytes() + elsewhere_bytes_);
  if (use == MemoryUse::kTensors) max_tensor_bytes_ = std::max(max_tensor_bytes_, by_use_[use]);
}

std::optional<std::uint64_t> ArenaBook::allocate(std::uint64_t bytes, MemoryUse use) {
  MutexLock lock(mutex_);
  const auto offset = ranges_.allocate(bytes, fit_of(use));
  if (!offset) return std::nullopt;
  use_of_.emplace(*offset, use);
  add(use, ranges_.bytes_at(*offset));
  return offset;
}

void ArenaBook::free(std::uint64_t offset) {
  MutexLock lock(mutex_);
  const auto use = use_of_.find(offset);
  RP_ASSERT(use != use_of_.end());
  by_use_[use->second] -= ranges_.bytes_at(offset);
  use_of_.erase(use);
  ranges_.free(offset);
}

void ArenaBook::count_as(std::uint64_t offset, MemoryUse use) {
  MutexLock lock(mutex_);
  const auto place = use_of_.find(offset);
  if (place == use_of_.end()) return;
  const std::uint64_t bytes = ranges_.bytes_at(offset);
  by_use_[place->second] -= bytes;
  place->second = use;
  add(use, bytes);
}

void ArenaBook::add_elsewhere(MemoryUse use, std::uint64_t bytes) {
  MutexLock lock(mutex_);
  elsewhere_bytes_ += bytes;
  add(use, bytes);
}

void ArenaBook::remove_elsewhere(MemoryUse use, std::uint64_t bytes) {
  MutexLock lock(mutex_);
  elsewhere_bytes_ -= bytes;
  by_use_[use] -= bytes;
}

BytesByUse ArenaBook::bytes_by_use() const {
  MutexLock lock(mutex_);
  return by_use_;
}

std::uint64_t ArenaBook::largest_free() const {
  MutexLock lock(mutex_);
  return ranges_.largest_free();
}

DeviceMemoryPeaks ArenaBook::peaks() const {
  MutexLock lock(mutex_);
  return peaks_;
}

ArenaBook::Level ArenaBook::take_tensor_level() {
  MutexLock lock(mutex_);
  const std::uint64_t bytes = by_use_[MemoryUse::kTensors];
  return {.bytes = bytes, .peak_bytes = std::exchange(max_tensor_bytes_, bytes)};
}

}  // namespace rp
