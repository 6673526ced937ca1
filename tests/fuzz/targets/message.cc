// A packet between rp-launch and a process of the run.
#include <sys/socket.h>

#include "launcher/process/channel.h"
#include "launcher/trace/run_trace.h"
#include "tests/fuzz/reading.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static std::pair<rp::Channel, rp::Channel> ends = rp::Channel::create_pair();
  if (size == 0) return 0;  // the end of the connection, by the rules of such sockets
  rp::fuzz::require(send(ends.first.fd(), data, size, MSG_DONTWAIT) == static_cast<ssize_t>(size));
  return rp::fuzz::expect_answer([&] {
    const std::optional<rp::Message> message = ends.second.receive(rp::Deadline::after_ns(0));
    rp::fuzz::require(message.has_value() && message->blob.size() <= rp::kMaxBlobBytes);
    (void)rp::RunTrace::copy_of(*message);
  });
}
