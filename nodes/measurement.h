// nodes/measurement.h
// Measures the network between the nodes of a job through the same library as runs: how far their clocks differ, and
// how fast neighbours exchange messages.
//
// The nodes form a ring, in which each has two neighbours. Pairs of neighbours are measured at the same time if they
// have no node in common, so all pairs need two turns, or three if the number of nodes is odd, however many they are.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "nodes/network.h"

namespace rp {

// How far the clock of a node is ahead of that of node 0.
struct ClockDifference {
  double seconds = 0;
  double uncertainty_seconds = 0;  // the difference may be larger or smaller by this much
};

// Two neighbours, while both send.
struct LinkSpeed {
  int first = 0;
  int second = 0;
  double latency_us = 0;     // of a message of a few bytes: half of the median time there and back
  double gbs_to_second = 0;  // in 10^9 bytes per second
  double gbs_to_first = 0;
};

// What is nullopt was not measured, because messages between these nodes did not arrive in time.
struct NodesMeasurement {
  std::vector<std::optional<ClockDifference>> clocks;  // by node
  struct Link {
    int first = 0;
    int second = 0;
    std::optional<LinkSpeed> speed;
  };
  std::vector<Link> links;  // each node with the next one; none if there is one node
};

struct MeasurementSettings {
  double seconds_per_link = 1;                                  // in which data is sent, about
  std::uint64_t max_bytes_per_link = std::uint64_t{200} << 20;  // in each direction
  double limit_seconds = 6;                                     // for the clocks, and for each turn
  std::function<std::int64_t()> clock = {};                     // nanoseconds; default: the time of day
};

// Returns the pairs of neighbours, in turns: no two pairs of a turn have a node in common.
[[nodiscard]] std::vector<std::vector<std::pair<int, int>>> turns_of_neighbours(int num_nodes);

// All nodes must call it at about the same time. Returns the whole measurement on node 0, and nothing on the others.
// Returns at most `limit_seconds` times the number of turns plus 2 later. Throws the error of
// NodeNetwork::report_failure(). If something was not measured, messages may be left on their way: the network cannot
// finish() then.
[[nodiscard]] std::optional<NodesMeasurement> measure_nodes(NodeNetwork& network, const MeasurementSettings& settings);

}  // namespace rp
