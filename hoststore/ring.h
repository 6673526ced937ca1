// hoststore/ring.h
// A one-way queue between two processes. Byte format: docs/formats/control.md#ring.
//
// Header and slots lie in the control segment. RingWriter and RingReader are each process's private view; neither owns
// the memory, and the Store must outlive both. One writer and one reader per ring at a time.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/check.h"
#include "common/shm_safe.h"
#include "hoststore/sequence_word.h"

namespace rp {

// Number of items ever pushed, and ever popped. Each has a cache line of its own.
struct RingHeader {
  using ShmFormat = void;
  alignas(64) SequenceWord tail;  // written by the ring's writer
  alignas(64) SequenceWord head;  // written by the ring's reader
};
static_assert(sizeof(RingHeader) == 128 && ShmSafe<RingHeader>);

// Bytes that a ring of `capacity` items takes.
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

  // Copies `item` into the ring and wakes the reader. Returns false, leaving the ring unchanged, if it is full. Never
  // blocks.
  // SYNC: publish(tail) is a release and pairs with observe(tail) in the reader: the item is written before it.
  [[nodiscard]] bool try_push(const T& item) {
    if (!put(item)) return false;
    header_->tail.publish(header_->tail.observe() + 1);
    return true;
  }

  // The same for a ring whose reader never sleeps in wait(): no system call.
  [[nodiscard]] bool try_push_quietly(const T& item) {
    if (!put(item)) return false;
    header_->tail.publish_quietly(header_->tail.observe() + 1);
    return true;
  }

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

  // Copies the oldest item out. Returns false if the ring is empty. Never blocks. No writer sleeps on a full ring.
  // SYNC: publish_quietly(head) is a release and pairs with observe(head) in the writer: the slot is read before it is
  // reused.
  [[nodiscard]] bool try_pop(T& item) {
    const std::uint64_t head = header_->head.observe();
    if (header_->tail.observe() <= head) return false;
    item = items_[head % capacity_];
    header_->head.publish_quietly(head + 1);
    return true;
  }

  // Sleeps until the ring has an item.
  [[nodiscard]] WaitResult wait(const WaitLimits& limits) const {
    return header_->tail.wait_at_least(header_->head.observe() + 1, limits);
  }

  // Wakes whoever sleeps in wait(), in whatever thread of this process.
  void wake() const { header_->tail.wake(); }

 private:
  RingHeader* header_ = nullptr;
  const T* items_ = nullptr;
  std::uint32_t capacity_ = 0;
};

}  // namespace rp
