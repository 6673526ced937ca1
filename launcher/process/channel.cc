#include "launcher/process/channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "common/check.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr std::uint32_t kMagic = 0x4d485052;  // "RPHM"

struct PacketHeader {
  std::uint32_t magic;
  MessageKind kind;
  std::int32_t worker;
  std::int32_t status;
  std::uint32_t blob_bytes;
  std::uint32_t num_descriptors;
};
static_assert(sizeof(PacketHeader) == 24);

constexpr std::size_t kControlBytes = CMSG_SPACE(kMaxDescriptors * sizeof(int));

struct alignas(cmsghdr) Control {
  std::array<char, kControlBytes> bytes;
};

// Takes ownership of every descriptor in the packet's ancillary data, so that none leaks even if
// the packet is invalid.
std::vector<UniqueFd> take_descriptors(msghdr& header) {
  std::vector<UniqueFd> descriptors;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t num = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < num; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      descriptors.emplace_back(fd);
    }
  }
  return descriptors;
}

// Returns false if the deadline passes first.
bool wait_readable(int fd, const Deadline& deadline) {
  while (true) {
    const std::int64_t left_ns = std::max<std::int64_t>(0, deadline.left_ns());
    const std::int64_t left_ms = left_ns == INT64_MAX ? -1 : std::min<std::int64_t>(left_ns / kNsPerMs + 1, INT32_MAX);
    pollfd poll_fd{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = poll(&poll_fd, 1, left_ns == 0 ? 0 : static_cast<int>(left_ms));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw Error(ExitCode::kLauncherFailed, cat("poll: ", errno_text(errno)));
    if (deadline.passed()) return false;
  }
}

Message message_of(const PacketHeader& header, const std::byte* blob, std::size_t blob_bytes,
                   std::vector<UniqueFd> descriptors, bool cut) {
  if (header.magic != kMagic || header.blob_bytes != blob_bytes) {
    throw Error(ExitCode::kLauncherFailed,
                "a message of rp-launch is of another format; rp-launch and the program must come from the same build");
  }
  if (cut || descriptors.size() != header.num_descriptors) {
    throw Error(ExitCode::kNoResource,
                cat("could take only ", descriptors.size(), " of ", header.num_descriptors,
                    " descriptors of the host store; raise the limit on open files (ulimit -n)"));
  }
  return Message{.kind = header.kind,
                 .worker = header.worker,
                 .status = header.status,
                 .blob = std::vector<std::byte>(blob, blob + blob_bytes),
                 .descriptors = std::move(descriptors)};
}

}  // namespace

std::pair<Channel, Channel> Channel::create_pair() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw Error(ExitCode::kNoResource,
                cat("cannot make a socket pair (", errno_text(errno), "); raise the limit on open files (ulimit -n)"));
  }
  return {Channel(UniqueFd(ends[0])), Channel(UniqueFd(ends[1]))};
}

bool Channel::send(const Message& message) {
  RP_ASSERT(message.blob.size() <= kMaxBlobBytes && message.descriptors.size() <= kMaxDescriptors);
  PacketHeader packet{.magic = kMagic,
                      .kind = message.kind,
                      .worker = message.worker,
                      .status = message.status,
                      .blob_bytes = static_cast<std::uint32_t>(message.blob.size()),
                      .num_descriptors = static_cast<std::uint32_t>(message.descriptors.size())};
  std::array<iovec, 2> parts{iovec{&packet, sizeof(packet)},
                             iovec{const_cast<std::byte*>(message.blob.data()), message.blob.size()}};
  msghdr header{};
  header.msg_iov = parts.data();
  header.msg_iovlen = parts.size();
  Control control{};
  if (!message.descriptors.empty()) {
    header.msg_control = control.bytes.data();
    header.msg_controllen = CMSG_SPACE(message.descriptors.size() * sizeof(int));
    cmsghdr* part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(message.descriptors.size() * sizeof(int));
    for (std::size_t i = 0; i < message.descriptors.size(); ++i) {
      const int fd = message.descriptors[i].get();
      std::memcpy(CMSG_DATA(part) + i * sizeof(int), &fd, sizeof(int));
    }
  }
  while (sendmsg(fd(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS) return false;
    if (errno != EPIPE && errno != ECONNRESET && errno != ENOTCONN) {
      throw Error(ExitCode::kLauncherFailed, cat("cannot send to another process of the run: ", errno_text(errno)));
    }
    peer_gone_ = true;
    return false;
  }
  return true;
}

std::optional<Message> Channel::receive(const Deadline& deadline) {
  if (peer_gone_ || !wait_readable(fd(), deadline)) return std::nullopt;
  PacketHeader packet{};
  std::array<std::byte, kMaxBlobBytes> blob;
  std::array<iovec, 2> parts{iovec{&packet, sizeof(packet)}, iovec{blob.data(), blob.size()}};
  Control control{};
  msghdr header{};
  header.msg_iov = parts.data();
  header.msg_iovlen = parts.size();
  header.msg_control = control.bytes.data();
  header.msg_controllen = control.bytes.size();
  ssize_t received = 0;
  do {
    received = recvmsg(fd(), &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (received < 0 && errno == EINTR);
  if (received < 0 && errno == EAGAIN) return std::nullopt;
  if (received <= 0) {
    peer_gone_ = true;
    return std::nullopt;
  }
  std::vector<UniqueFd> descriptors = take_descriptors(header);
  const auto size = static_cast<std::size_t>(received);
  if (size < sizeof(packet)) packet.magic = 0;  // too short to be a header, whatever its bytes are
  const std::size_t blob_bytes = size < sizeof(packet) ? 0 : size - sizeof(packet);
  return message_of(packet, blob.data(), blob_bytes, std::move(descriptors), (header.msg_flags & MSG_CTRUNC) != 0);
}

}  // namespace rp
