// planner/report_text.h
// Makes the figures of a report: sizes, shares and counts.
#pragma once

#include <string>

#include "common/text.h"

namespace rp {

// Returns a number of GiB, for example "9.50" or "120.5".
[[nodiscard]] inline std::string gib_text(double bytes) { return decimal(bytes / kGiB, bytes < 10 * kGiB ? 2 : 1); }

// Returns, for example, "93.1 %".
[[nodiscard]] inline std::string share_text(double part, double whole) {
  return cat(decimal(100 * part / whole, 1), " %");
}

// Returns, for example, "4 nodes".
[[nodiscard]] inline std::string nodes_text(int num_nodes) {
  return cat(num_nodes, num_nodes == 1 ? " node" : " nodes");
}

}  // namespace rp
