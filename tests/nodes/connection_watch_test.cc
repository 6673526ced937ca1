#include "launcher/hosts/connection_watch.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "common/system/clock.h"
#include "common/system/fd.h"

namespace rp::test {
namespace {

// A connection of this process with itself, whose other end does not read. The system test cuts the network.
TEST(ConnectionWatch, AnEndThatDoesNotReadIsNotOneThatDoesNotAnswer) {
  const UniqueFd server(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof place;
  auto* const address = reinterpret_cast<sockaddr*>(&place);
  ASSERT_EQ(bind(server.get(), address, length), 0);
  ASSERT_EQ(listen(server.get(), 1), 0);
  ASSERT_EQ(getsockname(server.get(), address, &length), 0);
  const auto num_before = tcp_connections(getpid()).size();
  const UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(client.get(), address, length), 0);
  const UniqueFd accepted(accept4(server.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_EQ(tcp_connections(getpid()).size(), num_before + 2) << "without the socket that listens";

  const std::vector<char> data(1 << 16);
  while (send(client.get(), data.data(), data.size(), MSG_DONTWAIT) > 0) {}
  const auto waits = [](const TcpConnection& connection) { return connection.sent_bytes > 0; };
  EXPECT_TRUE(std::ranges::any_of(tcp_connections(getpid()), waits));
  ConnectionWatch watch(getpid());
  for (int look = 0; look < 8; ++look) {
    EXPECT_EQ(watch.unanswered_ns(now_ns()), 0);
    usleep(100'000);
  }
}

}  // namespace
}  // namespace rp::test
