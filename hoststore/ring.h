// hoststore/ring.h
// A one-way queue between two processes. Byte format: docs/formats/control.md#ring.
//
// The header and the items are in the control segment. RingWriter and RingReader are the private
// views of the two processes. Neither owns the memory, and the Store must outlive both. A ring has
// one writer and one reader at a time.
#pragma once

#include <cstdint>

#include "common/check.h"
#include "common/shm_safe.h"
#include "hoststore/sequence_word.h"

namespace rp {

// Counts the items that were ever pushed (tail) and ever popped (head). Each counter has a cache
// line of its own.
struct RingHeader {
  using ShmFormat = void;
  alignas(64) SequenceWord tail;  // written by the ring's writer
  alignas(64) SequenceWord head;  // written by the ring's reader
};
static_assert(sizeof(RingHeader) == 128 && ShmSafe<RingHeader>);

// The number of bytes that a ring of `capacity` items occupies.
template <ShmSafe T>
[[nodiscard]] constexpr std::uint64_t ring_bytes(std::uint32_t capacity) {
  return sizeof(RingHeader) + sizeof(T) * capacity;
}

template <ShmSafe T>
class RingWriter {
 public:
  RingWriter() = default;
  RingWriter(std::byte* memory, std::uint32_t capacity)
      : header_(reinterpret_cast<RingHeader*>(memory)),
        items_(reinterpret_cast<T*>(memory + sizeof(RingHeader))),
        capacity_(capacity) {}

  // Copies `item` into the ring and wakes the reader. Returns false, leaving the ring unchanged, if
  // it is full. Never blocks.
  // SYNC: publish(tail) is a release and pairs with observe(tail) in the reader, so a reader that
  // sees the new tail also sees the item.
  [[nodiscard]] bool try_push(const T& item) {
    if (!put(item)) return false;
    header_->tail.publish(header_->tail.observe() + 1);
    return true;
  }

  // Like try_push(), but without a system call, for a ring whose reader never sleeps in wait().
  [[nodiscard]] bool try_push_quietly(const T& item) {
    if (!put(item)) return false;
    header_->tail.publish_quietly(header_->tail.observe() + 1);
    return true;
  }

  // Drops all items. REQUIRES: no thread reads the ring.
  void discard() { header_->head.publish_quietly(header_->tail.observe()); }

 private:
  [[nodiscard]] bool put(const T& item) {
    const std::uint64_t tail = header_->tail.observe();
    if (tail - header_->head.observe() >= capacity_) return false;
    items_[tail % capacity_] = item;
    return true;
  }

  RingHeader* header_ = nullptr;
  T* items_ = nullptr;
  std::uint32_t capacity_ = 0;
};

template <ShmSafe T>
class RingReader {
 public:
  RingReader() = default;
  RingReader(std::byte* memory, std::uint32_t capacity)
      : header_(reinterpret_cast<RingHeader*>(memory)),
        items_(reinterpret_cast<const T*>(memory + sizeof(RingHeader))),
        capacity_(capacity) {}

  // Copies the oldest item to `item` and removes it. Returns false if the ring is empty. Never
  // blocks. Wakes no thread, because no writer sleeps on a full ring.
  // SYNC: publish_quietly(head) is a release and pairs with observe(head) in the writer, so the
  // item is read before its place is written again.
  [[nodiscard]] bool try_pop(T& item) {
    const std::uint64_t head = header_->head.observe();
    if (header_->tail.observe() <= head) return false;
    item = items_[head % capacity_];
    header_->head.publish_quietly(head + 1);
    return true;
  }

  // Drops all items.
  void discard() { header_->head.publish_quietly(header_->tail.observe()); }

  // Sleeps until the ring has an item.
  [[nodiscard]] WaitResult wait(const WaitLimits& limits) const {
    return header_->tail.wait_at_least(header_->head.observe() + 1, limits);
  }

  // Wakes all threads of this process that sleep in wait().
  void wake() const { header_->tail.wake(); }

 private:
  RingHeader* header_ = nullptr;
  const T* items_ = nullptr;
  std::uint32_t capacity_ = 0;
};

}  // namespace rp
