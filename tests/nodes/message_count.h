// tests/nodes/message_count.h
// Counts messages between nodes.
#pragma once

#include <cstdint>

namespace rp::test {

struct MessageCount {
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;
  bool operator==(const MessageCount&) const = default;
};

inline void add(MessageCount& sum, const MessageCount& count, int times = 1) {
  sum.messages += count.messages * static_cast<std::uint64_t>(times);
  sum.bytes += count.bytes * static_cast<std::uint64_t>(times);
}

}  // namespace rp::test
