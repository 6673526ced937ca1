#include "common/network_profile.h"

#include <charconv>
#include <initializer_list>
#include <utility>

namespace rp {

namespace {

// A message arrives so long after its bytes, because the coordinator looks for messages every 50 us
// (docs/design/several-nodes.md, "Open MPI, as found").
constexpr double kLatencyUs = 70;

std::optional<double> amount_of(std::string_view text,
                                std::initializer_list<std::pair<std::string_view, double>> units) {
  constexpr double kMost = 1e6;
  for (const auto& [unit, factor] : units) {
    if (!text.ends_with(unit)) continue;
    double number = 0;
    const char* const end = text.data() + text.size() - unit.size();
    const auto [stop, failure] = std::from_chars(text.data(), end, number);
    if (failure == std::errc{} && stop == end && number >= 0 && number <= kMost) return number * factor;
  }
  return std::nullopt;
}

}  // namespace

std::optional<NetworkProfile> network_of(std::string_view text) {
  const std::size_t comma = text.find(',');
  const auto rate =
      amount_of(text.substr(0, comma), {{"gbit", 0.125}, {"Gbit", 0.125}, {"Gbit/s", 0.125}, {"GB/s", 1}});
  const auto latency = comma == std::string_view::npos ? std::optional(kLatencyUs)
                                                       : amount_of(text.substr(comma + 1), {{"us", 1}, {"ms", 1000}});
  if (!rate || *rate == 0 || !latency) return std::nullopt;
  return NetworkProfile{.gbs = *rate, .latency_us = *latency};
}

}  // namespace rp
