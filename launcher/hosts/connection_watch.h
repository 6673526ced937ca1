// launcher/hosts/connection_watch.h
// Notices that a host does not answer a process of Open MPI on this host.
//
// Open MPI notices that a connection is lost only while nothing that was sent on it waits to be acknowledged. Otherwise
// the kernel sends this data again and again, and gives up after about 15 minutes. The kernel shows how often it has.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <vector>

namespace rp {

struct TcpConnection {
  std::uint64_t number = 0;      // of the socket
  std::uint64_t sent_bytes = 0;  // that are not acknowledged yet
  int num_retries = 0;           // how often the kernel has sent them again; 0 also if the other end does not read
};

// Returns the TCP connections of a process of the same user; none if it has ended.
[[nodiscard]] std::vector<TcpConnection> tcp_connections(pid_t pid);

// Observes one process.
class ConnectionWatch {
 public:
  explicit ConnectionWatch(pid_t pid) : pid_(pid) {}

  // Looks at the connections at this time of CLOCK_MONOTONIC. Returns for how long one of them has been sending the
  // same data again; 0: none has. Must be called a few times a second.
  [[nodiscard]] std::int64_t unanswered_ns(std::int64_t now_ns);

 private:
  const pid_t pid_;
  std::map<std::uint64_t, std::int64_t> since_ns_;  // of those that send again, by number
};

}  // namespace rp
