// common/network_profile.h
#pragma once

#include <limits>
#include <optional>
#include <string_view>

namespace rp {

// The network between equal nodes. Each node has one link to it, and it has no other limits.
struct NetworkProfile {
  double gbs = std::numeric_limits<double>::infinity();  // of a link, in each direction at the same time
  double latency_us = 0;  // from the end of a message's bytes until the receiver knows of it
  bool operator==(const NetworkProfile&) const = default;
};

// What network_of() accepts, for messages.
inline constexpr const char* kNetworkWords = "a rate, as 25gbit or 3.1GB/s, or a rate and a latency, as 25gbit,70us";

// Parses a rate and, if there is one, a latency. Returns nothing for any other text.
[[nodiscard]] std::optional<NetworkProfile> network_of(std::string_view text);

}  // namespace rp
