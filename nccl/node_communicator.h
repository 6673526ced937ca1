// nccl/node_communicator.h
// Connects one worker of each node through NCCL, so that their GPUs send parts of gradients to each
// other (docs/design/several-nodes.md#nccl-between-gpus). The rank of a node is its number.
//
// Owned by the worker, which must destroy it before its device. connect(), exchange(),
// wait_enqueued() and finish() are called by one thread at a time, in which the GPU's context is
// current. abort() and check() may be called by any thread; all such calls must have returned before
// the object is destroyed.
//
// NCCL permits one thread at a time to use a communicator, and may block for ever in a call that
// waits for another rank. So the communicator is of NCCL's kind that does not block: each call
// returns at once, is made with the mutex held, and the threads that wait ask NCCL now and then how
// far it is, with the mutex released in between. abort() takes the communicator away from them
// first, so that every wait ends even if NCCL needs long to give its resources back.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/mutex.h"
#include "common/nodes.h"
#include "common/system/clock.h"
#include "hoststore/sequence_word.h"
#include "nccl/nccl_table.h"

namespace rp {

// What this node sends to another one in an exchange, and what it receives from it, in device
// memory. Each may be empty.
struct ExchangePart {
  int node = 0;
  std::span<const std::byte> sent{};
  std::span<std::byte> received{};
};

class NodeCommunicator {
 public:
  // The table must outlive it.
  NodeCommunicator(const NcclTable& table, NodePlace place) : table_(table), place_(place) {}
  // Aborts unless finish() has succeeded or abort() was called.
  ~NodeCommunicator();
  NodeCommunicator(const NodeCommunicator&) = delete;
  NodeCommunicator& operator=(const NodeCommunicator&) = delete;

  // Waits until all nodes have joined with this id. Returns false if it is stopped, or after abort().
  // Throws rp::Error: kNodeLost if a node does not come within the time, else NCCL's error. REQUIRES:
  // called once.
  [[nodiscard]] bool connect(const NcclId& id, const WaitLimits& limits) RP_EXCLUDES(mutex_);

  // Begins to enqueue an exchange on the stream: everything is sent and received there at the same
  // time, after what is enqueued already. Does nothing if there is nothing to move, or after
  // abort(). Throws rp::Error with NCCL's error. REQUIRES: connected; the exchange before is
  // enqueued (wait_enqueued()); all nodes make the same exchanges in the same order, in which what
  // one sends to another has the length of what that one receives; the memory stays until the
  // stream has executed the exchange.
  void exchange(std::span<const ExchangePart> parts, CUstream_st* stream) RP_EXCLUDES(mutex_);

  // Waits until the last exchange is enqueued: an event that is recorded then comes after it. The
  // first exchange with a node also connects the GPUs, so it may wait for that node. Returns kStopped
  // after abort(). Throws rp::Error with NCCL's error.
  [[nodiscard]] WaitResult wait_enqueued(const WaitLimits& limits) RP_EXCLUDES(mutex_);

  // Throws rp::Error if NCCL has met an error: nothing else shows that an exchange that is enqueued
  // will never end. Does nothing while there is no communicator. A thread that waits for the stream
  // must call it now and then. After an error only abort() has an effect. Thread-safe.
  void check() RP_EXCLUDES(mutex_);

  // Ends the communicator and everything that it has enqueued, at most once, and lets every wait
  // return. Returns when NCCL uses no memory any more, whichever thread has called it first, or after
  // kAbortNs: then the memory must stay until the process ends (Device::leave_to_process_end()). Has
  // no effect after finish(). Thread-safe.
  void abort() RP_EXCLUDES(mutex_);
  static constexpr std::int64_t kAbortNs = kNsPerSecond;

  // Returns whether abort() was called. After an abort the stream goes on with what is enqueued behind
  // an exchange, although nothing has arrived. So whatever tells other threads that received parts are
  // there must look here first, after them in the order of the stream. Never waits; thread-safe.
  // SYNC: acquire; pairs with publish_abort().
  [[nodiscard]] bool observe_abort() const { return is_aborted_.load(std::memory_order_acquire); }

  // Ends the communicator once all nodes have done so. Returns false after abort(), and aborts if
  // the others do not come within the time. Throws rp::Error with NCCL's error. REQUIRES: the
  // stream has executed all exchanges.
  [[nodiscard]] bool finish(std::int64_t timeout_ns) RP_EXCLUDES(mutex_);

 private:
  // Shared with the thread that aborts, which may end later than this object.
  struct Abort {
    Mutex mutex;
    CondVar changed;
    bool is_done RP_GUARDED_BY(mutex) = false;
    Patience patience RP_GUARDED_BY(mutex){kAbortNs};  // of all calls together
  };

  // Waits until NCCL has nothing in progress. `what`: for errors.
  [[nodiscard]] WaitResult wait_idle(const WaitLimits& limits, const char* what) RP_EXCLUDES(mutex_);
  [[nodiscard]] NcclResult progress(const char* what) RP_REQUIRES(mutex_);
  void check(NcclResult result, const char* what) const;
  // SYNC: release; pairs with observe_abort(). Precedes the call of NCCL that ends exchanges.
  void publish_abort() { is_aborted_.store(true, std::memory_order_release); }

  const NcclTable& table_;
  const NodePlace place_;
  Mutex mutex_;
  CondVar changed_;
  ncclComm* comm_ RP_GUARDED_BY(mutex_) = nullptr;
  std::shared_ptr<Abort> abort_ RP_GUARDED_BY(mutex_);  // nullptr before the first call of abort()
  std::atomic<bool> is_aborted_{false};
};

}  // namespace rp
