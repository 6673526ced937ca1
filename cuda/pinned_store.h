// cuda/pinned_store.h
// Registers a worker's mappings of the host store with the driver, piece by piece, in a thread of its own, while the
// first tasks run: weights and gradients in layer order, activations when a copy first meets them.
//
// What is not registered yet is copied through a pinned buffer meanwhile (CudaStream). What is refused is tried again
// (RegistrationQueue), for as long as the worker lives; what stays without is reported once, with its cost. Workers
// take turns at the same bytes, by locks on the store's files. Owned by the CudaDevice. Store and memory must outlive
// it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "cuda/pinned_memory.h"
#include "cuda/registration_queue.h"
#include "hoststore/store.h"

namespace rp {

struct PinnedStoreOptions {
  RegistrationPolicy policy{};
  std::int64_t control_timeout_ns = 30 * kNsPerSecond;  // how long the control segment may be refused
};

class PinnedStore {
 public:
  // Tells the user one line.
  using Warn = std::function<void(const std::string&)>;

  // The control segment is registered at the return. Throws rp::Error (kNoResource) if it cannot be: devices could not
  // wait for its words.
  PinnedStore(PinnedMemory& memory, Store& store, Warn warn, const PinnedStoreOptions& options = {});
  ~PinnedStore();  // a piece that is being registered is finished
  PinnedStore(const PinnedStore&) = delete;
  PinnedStore& operator=(const PinnedStore&) = delete;

  // No further piece is registered: the worker ends. Any thread.
  void stop();

  // A copy met this memory, which is not registered. Any thread.
  void notice_unregistered(const std::byte* data);

  // For tests and reports: sleeps until weights and gradients are registered, or given up until later, or stop() is
  // called.
  void wait_until_through() const;

 private:
  void register_control(const PinnedStoreOptions& options);
  void run();
  // Whether there was a notice since it was asked last.
  [[nodiscard]] bool takes_notice();
  void add_activations();
  // One attempt, with the lock on its bytes if no other worker has it.
  void try_to_register(RegistrationQueue& queue, const RegistrationQueue::Attempt& attempt);
  // Publishes and reports what has changed since the last call.
  void report();
  [[nodiscard]] std::string staged_text(StorePart part);

  PinnedMemory& memory_;
  Store& store_;
  const Warn warn_;
  const std::vector<Store::Region> layers_;  // weights and gradients: they never grow
  std::atomic<bool> ends_{false};
  std::atomic<std::uint32_t> num_noticed_{0};  // a futex: the thread sleeps while it stays as it is
  SequenceWord through_{};  // writer: the thread. 1: weights and gradients are registered, or given up

  // The thread's, and before it the constructor's.
  RegistrationQueue queue_;
  std::vector<std::uint64_t> arena_bytes_;  // of each arena of activations that the queue was given
  std::array<std::string, kNumStoreParts> last_refusals_;
  std::array<bool, kNumStoreParts> is_reported_{};
  bool has_staged_ = false;  // reported, and not cured yet
  std::uint32_t num_seen_ = 0;

  std::thread thread_;
};

}  // namespace rp
