// cuda/pinned_store.h
// Registers a worker's mappings of the host store with the driver, piece by piece, in a thread of its own, while the first tasks
// run: weights and gradients in layer order, activations when a copy first meets them.
//
// What is not registered yet, or cannot be, is copied through a pinned buffer meanwhile (CudaStream); when it is known what
// cannot, it is told once. Owned by the CudaDevice. Store and memory must outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "cuda/pinned_memory.h"
#include "hoststore/store.h"

namespace rp {

class PinnedStore {
 public:
  // A piece ends where a layer's weights or gradients do, if one does. The driver takes no piece of 512 GiB; small ones let the
  // first tasks begin.
  static constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 30;
  // Tells the user one line.
  using Warn = std::function<void(const std::string&)>;

  // The control segment is registered at the return. Throws rp::Error (kNoResource) if it cannot be: devices could not wait for
  // its words.
  PinnedStore(PinnedMemory& memory, Store& store, Warn warn, std::uint64_t piece_bytes = kPieceBytes);
  ~PinnedStore();  // a piece that is being registered is finished
  PinnedStore(const PinnedStore&) = delete;
  PinnedStore& operator=(const PinnedStore&) = delete;

  // No further piece is registered: the worker ends. Any thread.
  void stop();

  // A copy met this memory, which is not registered. Any thread.
  void notice_unregistered(const std::byte* data);

  // For tests and reports: sleeps until weights and gradients are through.
  void wait_until_through() const;

 private:
  struct Failure {
    std::string what;
    std::string why;
    std::uint64_t bytes = 0;
    std::uint64_t of_bytes = 0;
  };
  struct Arena {
    std::uint64_t registered_bytes = 0;  // or given up
    bool has_failed = false;
  };

  void run();
  // Whether there was a notice since it was asked last.
  [[nodiscard]] bool takes_notice();
  void add_cut(const Store::Region& region);
  void add_activations();
  [[nodiscard]] std::string failure_text(const Failure& failure) const;

  PinnedMemory& memory_;
  Store& store_;
  const Warn warn_;
  const std::uint64_t piece_bytes_;
  const std::vector<Store::Region> regions_;  // of weights and gradients: each is registered once, or given up
  std::vector<Arena> arenas_;                 // the thread's
  std::atomic<bool> ends_{false};
  std::atomic<std::uint32_t> num_noticed_{0};  // a futex: the thread sleeps while it stays as it is
  std::uint32_t num_seen_ = 0;                 // the thread's
  SequenceWord through_{};                     // writer: the thread. 1: weights and gradients are registered, or given up
  std::thread thread_;
};

}  // namespace rp
