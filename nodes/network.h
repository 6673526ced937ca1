// nodes/network.h
// Moves messages between the coordinators of the nodes of a run (docs/design/several-nodes.md).
//
// Messages of the same sender, kind and number arrive in the order in which they were sent; others
// may overtake each other. A message may wait at its sender until it is received. Any thread may
// call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <vector>

#include "common/mutex.h"
#include "common/nodes.h"

namespace rp {

enum class NodeMessageKind : std::uint8_t {
  kComparison,     // a part of what the nodes compare at the start
  kDecision,       // of the first node, or a signal for it
  kGradient,       // a piece of a gradient; its number is the use
  kWeights,        // a piece of the new weights of a group; its number is the group
  kSquares,        // the sums of squares of a step; its number is the pipeline
  kSaved,          // the checksum of a part of a saved state; its number is the pipeline
  kMasters,        // a piece of the masters of a parameter; its number is the pipeline
  kLosses,         // the losses of a round; its number is the pipeline
  kPlan,           // of the first node, for a later round; its number is the pipeline
  kCommunicators,  // the ids of NCCL's communicators
  kHeartbeat,      // the sender is alive
  kProbe,          // of a measurement of the network
};

struct NodeMessageTag {
  NodeMessageKind kind{};
  std::uint32_t number = 0;
  auto operator<=>(const NodeMessageTag&) const = default;
};

class NodeNetwork {
 public:
  // Called by the network's own thread. Must be short, and must not wait.
  using Done = std::function<void()>;

  virtual ~NodeNetwork() = default;

  [[nodiscard]] virtual NodePlace place() const = 0;

  // Adds a function that is called once this node cannot go on, because the network has failed or
  // report_failure() was called: messages that are not complete may never be. It must not wait.
  void add_failure_handler(const std::function<void(std::exception_ptr)>& handler);
  // The first call counts.
  void report_failure(const std::exception_ptr& error);

  // Begins to send `memory`, which must not change before `done` is called.
  virtual void send(int to, NodeMessageTag tag, std::span<const std::byte> memory, Done done) = 0;

  // Begins to receive the next message with this tag, of this size, into `memory`, which must exist
  // until `done` is called.
  virtual void receive(int from, NodeMessageTag tag, std::span<std::byte> memory, Done done) = 0;

  // Waits until all messages are complete, and leaves the network. All nodes must call it, after all
  // calls of send() and receive(), except those of the functions that the network calls: they may
  // begin further messages, for which it waits as well. So a node can pass on what arrives late.
  // Throws rp::Error if the network fails meanwhile.
  virtual void finish() = 0;

  // Drops all messages that are not complete. No function is called any more when it returns.
  virtual void stop() = 0;

 private:
  Mutex failure_mutex_;
  std::vector<std::function<void(std::exception_ptr)>> failure_handlers_ RP_GUARDED_BY(failure_mutex_);
  std::exception_ptr failure_ RP_GUARDED_BY(failure_mutex_);
};

}  // namespace rp
