// cuda/pinned_store.h
// Registers a worker's mappings of the host store with the driver. It does so piece by piece in a
// thread of its own while the first tasks run: weights and gradients in layer order, activations
// when a copy first meets them.
//
// Memory that is not registered yet is copied through a pinned buffer (CudaStream). Refused pieces
// are tried again as long as the worker lives (RegistrationQueue). A piece that stays unregistered
// is reported once, with the cost. Locks on the store's files ensure that workers register the same
// bytes one after the other. Owned by the CudaDevice. Store and memory must outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/indexed.h"
#include "cuda/pinned_memory.h"
#include "cuda/registration_queue.h"
#include "hoststore/store.h"

namespace rp {

struct PinnedStoreOptions {
  RegistrationPolicy policy{};
  std::int64_t control_timeout_ns = 30 * kNsPerSecond;  // the time for which the control segment may be refused
};

class PinnedStore {
 public:
  // Shows one line of text to the user.
  using Warn = std::function<void(const std::string&)>;

  // Registers the control segment before it returns. Throws rp::Error (kNoResource) if that fails,
  // because devices could not wait for the segment's words.
  PinnedStore(PinnedMemory& memory, Store& store, Warn warn, const PinnedStoreOptions& options = {});
  ~PinnedStore();  // finishes a piece that is being registered
  PinnedStore(const PinnedStore&) = delete;
  PinnedStore& operator=(const PinnedStore&) = delete;

  // Stops the registration of further pieces, because the worker ends. Thread-safe.
  void stop();

  // Reports that a copy met this memory, which is not registered. Thread-safe.
  void notice_unregistered(const std::byte* data);

  // For tests and reports: sleeps until weights and gradients are registered or given up until
  // later, or stop() is called.
  void wait_until_through() const;

 private:
  void register_control(const PinnedStoreOptions& options);
  void run();
  // Returns true if a notice has arrived since the last call.
  [[nodiscard]] bool takes_notice();
  void add_activations();
  // Makes one attempt and holds the lock on its bytes. Postpones it if another worker has the lock.
  void try_to_register(RegistrationQueue& queue, const RegistrationQueue::Attempt& attempt);
  // Publishes and reports what has changed since the last call.
  void report();
  [[nodiscard]] std::string staged_text(StorePart part);

  PinnedMemory& memory_;
  Store& store_;
  const Warn warn_;
  const std::vector<Store::Region> layers_;  // weights and gradients: they never grow
  std::atomic<bool> ends_{false};
  std::atomic<std::uint32_t> num_noticed_{0};  // a futex; the thread sleeps until it changes
  SequenceWord through_{};  // writer: the thread. 1: weights and gradients are registered or given up

  // Used by the thread, and before it starts by the constructor.
  RegistrationQueue queue_;
  std::vector<std::uint64_t> arena_bytes_;  // how much of each activation arena the queue has been given
  IndexedArray<StorePart, std::string, kNumStoreParts> last_refusals_;
  IndexedArray<StorePart, bool, kNumStoreParts> is_reported_{};
  bool has_staged_ = false;  // reported that copies are staged, and not yet that none is
  std::uint32_t num_seen_ = 0;

  std::thread thread_;
};

}  // namespace rp
