// scheduler/plan.h
// How a model is cut into stages. Pure values; no process, no clock.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "roundpipe/plan.h"

namespace rp {

// Layers [first, end).
struct LayerRange {
  int first = 0;
  int end = 0;
  bool operator==(const LayerRange&) const = default;
};

// Forward stages in ascending order cover [0, fused_start); the fused stage, if there is one, covers [fused_start,
// num_layers); backward stages in descending order cover [0, fused_start) again, cut independently, or nothing in a
// plan for inference, which has no fused stage.
struct Plan {
  std::vector<LayerRange> forward;
  int fused_start = 0;
  std::vector<LayerRange> backward;

  [[nodiscard]] int num_stages(int num_layers) const {
    return static_cast<int>(forward.size() + backward.size()) + (fused_start < num_layers ? 1 : 0);
  }
  bool operator==(const Plan&) const = default;
};

inline constexpr std::size_t kNumPlanKinds = 3;
[[nodiscard]] PlanKind kind_of(const Plan& plan, int num_layers);

// The same cuts for a round of this kind: a fused stage becomes a forward and a backward stage, backward stages are
// left out. Throws rp::Error (kUsage) if the plan lacks what the kind needs.
[[nodiscard]] Plan plan_for(PlanKind kind, const Plan& plan, int num_layers);

// Throws rp::Error (kUsage) naming the first layer that a stage misses, repeats or has out of order.
void validate_plan(const Plan& plan, int num_layers);

// As in PlanKind: "forward 0-9 10-19 | fused 20-31 | backward 10-19 0-9"; three or more neighbours of the same length
// as LENGTHxCOUNT: "forward 1x94 | fused 94-95 | backward 1x94".
[[nodiscard]] std::string plan_text(const Plan& plan, int num_layers);

// Reads plan_text()'s form, where LENGTHxCOUNT goes on where the stage before it ends, forward from layer 0 on and
// backward from the fused stage down; newlines count as `|`, and # starts a comment. Throws rp::Error (kUsage) naming
// the word that it does not understand, and what validate_plan() finds.
[[nodiscard]] Plan parse_plan(const std::string& text, int num_layers);

// The numbers of layers of stages in their order: "8,8,1x5,2". Three or more that are equal are written as
// LENGTHxCOUNT.
[[nodiscard]] std::string lengths_text(const std::vector<int>& lengths);
[[nodiscard]] std::string lengths_text(const std::vector<LayerRange>& stages);

// Reads lengths_text()'s form, or nothing if it is none or has more than `most` stages.
[[nodiscard]] std::optional<std::vector<int>> parse_lengths(const std::string& text, std::size_t most);

}  // namespace rp
