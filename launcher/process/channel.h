// launcher/process/channel.h
// Passes messages between rp-launch and the processes that it starts, over an inherited socket
// pair.
//
// One message is one packet: a fixed header, at most kMaxBlobBytes bytes, and at most
// kMaxDescriptors descriptors, which the receiver then owns. MessageKind lists which process sends
// which message.
//
// Contract: on each end at most one thread sends and at most one thread receives at a time. They
// may be different threads.
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
  // coordinator -> launcher: start the workers. The descriptors are those of the host store; the
  // blob is the path of the trace (run_trace.h).
  kStartWorkers = 1,
  // launcher -> worker: passes on the descriptors and the blob of kStartWorkers. `worker` is the
  // number of the receiver.
  kAttach = 2,
  // worker -> launcher: the start succeeded, and all earlier output is flushed. `status` is 1 if a
  // tool watches the worker (watching_tool.h), otherwise 0. The answer is kOutputOpen.
  kAttached = 3,
  // launcher -> worker: output that is written from now on reaches the user.
  kOutputOpen = 4,
  // launcher -> coordinator: `worker` is dead, and the run ends; `status` is in the format of waitpid().
  kWorkerGone = 5,
  // coordinator -> launcher: the program has written its state (Session::preempted()).
  kPreempted = 6,
  // coordinator -> launcher: the coordinator is about to end normally, so the end of a worker is no
  // longer a failure.
  kFinished = 7,
  // coordinator -> launcher, before kStartWorkers: after how many seconds without progress a process hangs; `status`
  // 0: rp-launch decides (hang_watch.h).
  kWaitTimeout = 8,
  // launcher -> coordinator: `worker` is dead, and the run goes on; `status` is in the format of
  // waitpid(). The answer is kWorkerDropped, after which another process will take its place.
  kWorkerLost = 9,
  // coordinator -> launcher: the tasks of `worker` were taken back, and its epoch has ended.
  kWorkerDropped = 10,
  // launcher -> coordinator: the same as kWorkerLost, but no process will take its place.
  kWorkerLeft = 11,
  // coordinator -> launcher, before kStartWorkers: how many seconds a worker may take to start, in `status`.
  kAttachTimeout = 12,
  // coordinator -> launcher: if this process dies, another one can go on in its place.
  kRestartable = 13,
  // launcher -> coordinator that takes the place of a dead one: the descriptors and the blob of the dead one's
  // kStartWorkers.
  kRestart = 14,
  // launcher -> coordinator, before kWorkerLost: the task with the slot in the blob (8 bytes) has ended so many workers
  // that it is not computed again.
  kSetAside = 15,
  // coordinator -> launcher: everything before the task of kSetAside is final, and the coordinator ends now.
  kTaskSetAside = 16,
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

  // Returns two connected ends, both close-on-exec. Throws rp::Error kNoResource.
  [[nodiscard]] static std::pair<Channel, Channel> create_pair();

  // Never blocks. Returns false if the message was not sent: the peer is gone (then peer_gone() is
  // true), its queue is full, or too many descriptors are in flight. REQUIRES: blob and descriptors
  // are within the limits.
  [[nodiscard]] bool send(const Message& message);

  // Returns the next message. Returns nullopt if the deadline passed, or if no further message can
  // arrive (then peer_gone() is true). Throws rp::Error kNoResource if this process may not open as
  // many descriptors as were sent.
  [[nodiscard]] std::optional<Message> receive(const Deadline& deadline);

  [[nodiscard]] bool peer_gone() const { return peer_gone_.load(); }
  [[nodiscard]] int fd() const { return socket_.get(); }

 private:
  UniqueFd socket_;
  std::atomic<bool> peer_gone_{false};
};

}  // namespace rp
