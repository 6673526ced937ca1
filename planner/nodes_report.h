// planner/nodes_report.h
// Reports what several nodes gain and what their network costs, for `rp-plan plan --nodes`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "planner/plan_command.h"

namespace rp {

// Returns the lines below the speed: the network's bytes and time, and how many times as fast the
// nodes are as fewer. REQUIRES: several nodes, and the answer has a prediction.
[[nodiscard]] std::string network_text(const PlanAnswer& answer);

// Returns a table of PlanAnswer::by_nodes; empty on one node.
[[nodiscard]] std::string nodes_table(const PlanAnswer& answer);

// Returns what JSON has of a prediction for several nodes.
[[nodiscard]] nlohmann::ordered_json network_json(const RunPrediction& prediction);

// Returns the speed of the nodes of `prediction`, as a share of what they would have if each were as
// fast as a node of `of_fewer`, which computes the same step.
[[nodiscard]] double nodes_efficiency(const RunPrediction& prediction, const RunPrediction& of_fewer);

}  // namespace rp
