// worker/node_gradients.h
// Exchanges gradients with the workers of this number on the other nodes, before they are
// downloaded: each GPU keeps what its node owns of the gradients of all nodes
// (docs/design/several-nodes.md#nccl-between-gpus).
//
// A gradient is exchanged in pieces. There is memory for the received parts of two of them, so one
// is downloaded while the next one is exchanged. All nodes must make the same exchanges in the same
// order.
//
// Owned by the Worker. All functions but abort(), leave() and wake() are called by the
// gradient downloader's thread. abort() may be called by any thread, and lets the waits of that thread end, as well as
// those of threads for which the driver first completes the exchange.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/system/clock.h"
#include "device/device.h"
#include "hoststore/store.h"
#include "nccl/gradient_route.h"
#include "nccl/node_communicator.h"

namespace rp {

class NodeGradients {
 public:
  // A piece of the gradient of a use.
  struct Piece {
    GroupId group{};
    std::uint64_t number = 0;
    const std::byte* gradient = nullptr;  // the whole gradient, on the device
  };

  struct Settings {
    std::int64_t connect_ns = 0;  // how long the workers of other nodes may take to join
    // At the end of a run all nodes leave at about the same time. After a failure some do not, and the run is to end
    // soon.
    std::int64_t leave_ns = 500 * kNsPerMs;
    // For the received parts of one piece. Long enough for the network to be busy while the next piece is enqueued: 32
    // MiB take 2.7 ms at 100 Gbit/s.
    std::uint64_t received_bytes = std::uint64_t{32} << 20;
  };

  // The arguments except the settings must outlive it.
  // Makes the id of the communicator on the first node; the coordinators pass it on. Throws rp::Error
  // (kUsage) if the device has no stream for exchanges. REQUIRES: nothing was computed on the device.
  NodeGradients(const NcclTable& nccl, Store& store, int worker, Device& device, const Settings& settings);

  [[nodiscard]] const GradientRoute& route() const { return route_; }
  // The memory of the device that it occupies.
  [[nodiscard]] std::uint64_t device_bytes() const;
  // Returns the pieces of a gradient, in order.
  [[nodiscard]] std::vector<Piece> pieces_of(GroupId group, const std::byte* gradient) const;

  // Waits until the workers of all nodes have joined. Does nothing if they have. Returns false if
  // `stop` is set or after abort(). Throws rp::Error (kNodeLost) if some do not come.
  [[nodiscard]] bool connect(const std::atomic<bool>* stop);

  // Begins to enqueue the exchange of a piece, after `computed`. Throws rp::Error with NCCL's error.
  // REQUIRES: connected; at most one exchange before this one has not ended with end().
  void begin(const Piece& piece, const Event& computed);
  // Waits until that exchange is enqueued. Returns kStopped after abort(). Throws rp::Error with
  // NCCL's error.
  [[nodiscard]] WaitResult wait_enqueued(const WaitLimits& limits);
  // Waits until the oldest exchange that has not ended is done. Returns and throws as wait_enqueued().
  [[nodiscard]] WaitResult wait_done(const WaitLimits& limits);
  // Returns the copies to the host's gradient buffer after that exchange.
  [[nodiscard]] std::vector<GradientRoute::Download> downloads(const Piece& piece) const;
  // Ends that exchange. `stream`: the copies are enqueued there.
  void end(Stream& stream);

  // Ends an exchange that is not done, and every wait for one. Thread-safe.
  void abort() { communicator_.abort(); }
  // The same if an exchange is not done; otherwise leaves the communicator. REQUIRES: no other thread
  // uses this object.
  void leave();
  // Wakes the thread that waits, so that it checks WaitLimits::stop.
  void wake() const {
    done_.wake();
    id_.is_known.wake();
  }

 private:
  struct Buffer {
    DeviceMemory received{};
    std::unique_ptr<Event> downloaded{};
  };
  [[nodiscard]] Buffer& buffer_of(std::uint64_t exchange) { return buffers_[exchange % buffers_.size()]; }
  [[nodiscard]] const Buffer& buffer_of(std::uint64_t exchange) const { return buffers_[exchange % buffers_.size()]; }

  const NodePlace place_;
  const int worker_;
  Device& device_;
  Stream& stream_;
  const Settings settings_;
  const GradientRoute route_;
  CommunicatorId& id_;
  NodeCommunicator communicator_;
  bool is_connected_ = false;
  std::array<Buffer, 2> buffers_{};
  std::uint64_t num_begun_ = 0;
  std::uint64_t num_ended_ = 0;
  SequenceWord done_{};  // writer: the exchange stream. The number of exchanges that are done
};

}  // namespace rp
