#include "coordinator/state_snapshot.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "common/check.h"

namespace rp {

namespace {

// An update waits for one piece at most before it may change what the saver was reading.
constexpr std::size_t kPieceBytes = std::size_t{8} << 20;

}  // namespace

StateSnapshot::StateSnapshot(std::vector<Part> parts, std::uint64_t max_copied_bytes) : max_copied_bytes_(max_copied_bytes) {
  for (const Part& part : parts) parts_.push_back({.part = part, .copy = nullptr});
}

void StateSnapshot::read_next(const std::function<void(std::span<const std::byte>)>& take) {
  MutexLock lock(mutex_);
  RP_ASSERT(next_ < parts_.size());
  const State& state = parts_[next_];
  const std::size_t bytes = state.part.memory.size();
  for (std::size_t offset = 0; offset < bytes; offset += kPieceBytes) {
    reads_store_ = state.copy == nullptr;
    const std::byte* from = reads_store_ ? state.part.memory.data() : state.copy.get();
    mutex_.unlock();
    std::exception_ptr error;
    try {
      take({from + offset, std::min(kPieceBytes, bytes - offset)});
    } catch (...) {
      error = std::current_exception();
    }
    mutex_.lock();
    reads_store_ = false;
    changed_.notify_all();
    if (error) std::rethrow_exception(error);
  }
  end_part();
}

void StateSnapshot::end_part() {
  State& state = parts_[next_];
  if (state.copy != nullptr) copied_bytes_ -= state.part.memory.size();
  state.copy.reset();
  ++next_;
  changed_.notify_all();
}

void StateSnapshot::close() {
  MutexLock lock(mutex_);
  is_closed_ = true;
  for (State& state : parts_) state.copy.reset();
  copied_bytes_ = 0;
  changed_.notify_all();
}

void StateSnapshot::before_update(std::uint32_t block, const std::function<void()>& on_wait) {
  MutexLock lock(mutex_);
  for (std::size_t index = next_; index < parts_.size() && !is_closed_; ++index) {
    if (parts_[index].part.block == block) copy_part(index, on_wait);
  }
  // The piece that is being read where it lies.
  while (reads_store_ && parts_[next_].part.block == block) wait(on_wait);
}

void StateSnapshot::copy_part(std::size_t index, const std::function<void()>& on_wait) {
  State& state = parts_[index];
  if (state.copy != nullptr) return;
  const std::size_t bytes = state.part.memory.size();
  while (index >= next_ && !is_closed_ && bytes > max_copied_bytes_ - copied_bytes_) wait(on_wait);
  if (index < next_ || is_closed_) return;
  copied_bytes_ += bytes;
  most_copied_bytes_ = std::max(most_copied_bytes_, copied_bytes_);
  mutex_.unlock();
  std::unique_ptr<std::byte[]> copy(new (std::nothrow) std::byte[bytes]);
  if (copy != nullptr) std::memcpy(copy.get(), state.part.memory.data(), bytes);
  mutex_.lock();
  if (is_closed_) return;  // which has counted the copy as gone
  if (copy == nullptr || index < next_) {
    copied_bytes_ -= bytes;
    while (index >= next_ && !is_closed_) wait(on_wait);  // without memory for a copy
    return;
  }
  state.copy = std::move(copy);
}

void StateSnapshot::wait(const std::function<void()>& on_wait) {
  changed_.wait(mutex_);
  on_wait();
}

std::uint64_t StateSnapshot::most_copied_bytes() {
  MutexLock lock(mutex_);
  return most_copied_bytes_;
}

}  // namespace rp
