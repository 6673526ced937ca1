// launcher/process/channel.h
// Messages between rp-launch and the processes it starts, over an inherited pair of sockets.
//
// One message is one packet: a fixed header, at most kMaxBlobBytes bytes, and at most kMaxDescriptors descriptors,
// which the receiver then owns. Who sends what: the list at MessageKind.
//
// Contract: on each end one thread at a time sends and one receives; they may be two.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "common/system/clock.h"
#include "common/system/fd.h"

namespace rp {

enum class MessageKind : std::uint32_t {
  // coordinator -> launcher: start the workers. The descriptors are those of the host store, the blob is the trace's
  // path (run_trace.h).
  kStartWorkers = 1,
  // launcher -> worker: the descriptors and the blob of kStartWorkers; `worker` says which one it is.
  kAttach = 2,
  // worker -> launcher: start-up succeeded, all earlier output is flushed. `status` is 1 where a tool watches it
  // (watching_tool.h), else 0.
  // Answered by kOutputOpen.
  kAttached = 3,
  // launcher -> worker: what is written from now on reaches the user.
  kOutputOpen = 4,
  // launcher -> coordinator: `worker` is dead, `status` as waitpid() gives it.
  kWorkerGone = 5,
  // coordinator -> launcher: the program has written its state (Session::preempted()).
  kPreempted = 6,
  // coordinator -> launcher: it is about to end normally; that a worker ends is no failure any more.
  kFinished = 7,
  // coordinator -> launcher: a wait ran out, it will fail: print what all processes do.
  kHang = 8,
};

inline constexpr std::size_t kMaxBlobBytes = 4096;
inline constexpr std::size_t kMaxDescriptors = 253;  // the kernel's limit for one packet

struct Message {
  MessageKind kind = MessageKind::kFinished;
  std::int32_t worker = -1;
  std::int32_t status = 0;
  std::vector<std::byte> blob;
  std::vector<UniqueFd> descriptors;
};

// One end of a pair. Owns its socket.
class Channel {
 public:
  explicit Channel(UniqueFd socket) : socket_(std::move(socket)) {}
  Channel(Channel&& other) noexcept : socket_(std::move(other.socket_)), peer_gone_(other.peer_gone()) {}
  Channel& operator=(Channel&& other) noexcept {
    socket_ = std::move(other.socket_);
    peer_gone_.store(other.peer_gone());
    return *this;
  }

  // Two connected ends, both close-on-exec. Throws rp::Error kNoResource.
  [[nodiscard]] static std::pair<Channel, Channel> create_pair();

  // Never blocks. False if the message was not sent: the peer is gone (peer_gone() says so), or its queue, or the
  // number of descriptors on their way, is full. REQUIRES: blob and descriptors within the limits.
  [[nodiscard]] bool send(const Message& message);

  // The next message; nullopt if the deadline passed or, then peer_gone() is true, none will ever come. Throws
  // rp::Error kNoResource if this process may not open as many descriptors as were sent.
  [[nodiscard]] std::optional<Message> receive(const Deadline& deadline);

  [[nodiscard]] bool peer_gone() const { return peer_gone_.load(); }
  [[nodiscard]] int fd() const { return socket_.get(); }

 private:
  UniqueFd socket_;
  std::atomic<bool> peer_gone_{false};
};

}  // namespace rp
