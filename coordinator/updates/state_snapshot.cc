#include "coordinator/updates/state_snapshot.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "common/check.h"

namespace rp {

namespace {

// An update waits for at most one piece before it may change memory that the saver was reading.
constexpr std::size_t kPieceBytes = std::size_t{8} << 20;

}  // namespace

StateSnapshot::StateSnapshot(const std::vector<Part>& parts, std::function<std::uint64_t()> free_bytes)
    : free_bytes_(std::move(free_bytes)) {
  for (const Part& part : parts) parts_.push_back({.part = part, .copy = nullptr});
}

bool StateSnapshot::read_next(const std::function<void(std::span<const std::byte>)>& take) {
  MutexLock lock(mutex_);
  RP_ASSERT(next_ < parts_.size());
  State& state = parts_[next_];
  const std::size_t bytes = state.part.memory.size();
  for (std::size_t offset = 0; offset < bytes && !is_closed_; offset += kPieceBytes) {
    reading_ = state.copy == nullptr ? Reading::kStore : Reading::kCopy;
    const std::byte* from = reading_ == Reading::kStore ? state.part.memory.data() : state.copy.get();
    mutex_.unlock();
    std::exception_ptr error;
    try {
      take({from + offset, std::min(kPieceBytes, bytes - offset)});
    } catch (...) {
      error = std::current_exception();
    }
    mutex_.lock();
    reading_ = Reading::kNothing;
    changed_.notify_all();
    if (error) std::rethrow_exception(error);
  }
  end_part();
  return !is_closed_;
}

void StateSnapshot::end_part() {
  State& state = parts_[next_];
  if (state.copy != nullptr && !is_closed_) copied_bytes_ -= state.part.memory.size();
  state.copy.reset();
  ++next_;
  changed_.notify_all();
}

void StateSnapshot::close() {
  MutexLock lock(mutex_);
  is_closed_ = true;
  for (std::size_t index = next_; index < parts_.size(); ++index) {
    if (index > next_ || reading_ != Reading::kCopy) parts_[index].copy.reset();
  }
  copied_bytes_ = 0;
  changed_.notify_all();
}

void StateSnapshot::before_update(GroupId group, const std::function<void()>& on_wait) {
  MutexLock lock(mutex_);
  for (std::size_t index = next_; index < parts_.size() && !is_closed_; ++index) {
    if (parts_[index].part.group == group) copy_part(index, on_wait);
  }
  // Waits for the piece that is being read from the store itself.
  while (reading_ == Reading::kStore && parts_[next_].part.group == group) wait(on_wait);
}

void StateSnapshot::copy_part(std::size_t index, const std::function<void()>& on_wait) {
  State& state = parts_[index];
  if (state.copy != nullptr) return;
  const std::size_t bytes = state.part.memory.size();
  while (index >= next_ && !is_closed_ && !has_room(bytes)) wait(on_wait);
  if (index < next_ || is_closed_) return;
  copied_bytes_ += bytes;
  peak_copied_bytes_ = std::max(peak_copied_bytes_, copied_bytes_);
  mutex_.unlock();
  std::unique_ptr<std::byte[]> copy(new (std::nothrow) std::byte[bytes]);
  if (copy != nullptr) std::memcpy(copy.get(), state.part.memory.data(), bytes);
  mutex_.lock();
  if (is_closed_) return;  // close() has subtracted the copy from the count
  if (copy == nullptr || index < next_) {
    copied_bytes_ -= bytes;
    while (index >= next_ && !is_closed_) wait(on_wait);  // there is no memory for a copy
    return;
  }
  state.copy = std::move(copy);
}

// Called before each copy, because the run's other memory, activations above all, may grow after
// the save began.
bool StateSnapshot::has_room(std::size_t bytes) { return bytes + copied_bytes_ / 2 <= free_bytes_() / 2; }

void StateSnapshot::wait(const std::function<void()>& on_wait) {
  on_wait();
  changed_.wait(mutex_);
}

std::uint64_t StateSnapshot::peak_copied_bytes() {
  MutexLock lock(mutex_);
  return peak_copied_bytes_;
}

}  // namespace rp
