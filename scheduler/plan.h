// scheduler/plan.h
// Plans: how a model is cut into stages, and their text form. Pure values and functions, without
// processes or clocks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "common/phase.h"
#include "roundpipe/plan.h"

namespace rp {

// Layers [first, end).
struct LayerRange {
  int first = 0;
  int end = 0;
  [[nodiscard]] constexpr bool is_empty() const { return first >= end; }
  [[nodiscard]] constexpr bool contains(int layer) const { return first <= layer && layer < end; }
  bool operator==(const LayerRange&) const = default;
};

// Forward stages in ascending order cover [0, fused_start). The fused stage, if there is one,
// covers [fused_start, num_layers). Backward stages in descending order cover [0, fused_start)
// again, and are cut independently of the forward stages. A plan for inference has neither a fused
// stage nor backward stages.
struct Plan {
  std::vector<LayerRange> forward;
  int fused_start = 0;
  std::vector<LayerRange> backward;

  [[nodiscard]] int num_stages(int num_layers) const {
    return static_cast<int>(forward.size() + backward.size()) + (fused_start < num_layers ? 1 : 0);
  }
  bool operator==(const Plan&) const = default;
};

// A stage of a plan.
struct PlanStage {
  Phase phase = Phase::kForward;
  LayerRange layers;
};

// Returns the layers of a backward stage that have a backward; an empty range if there are none.
[[nodiscard]] constexpr LayerRange trained_part(const LayerRange& layers, int first_trained_layer) {
  return {std::max(layers.first, std::min(first_trained_layer, layers.end)), layers.end};
}

// Returns the stages in the order of a round's slots: forward, fused, backward stages. Backward
// stages are without the layers that have no backward; a stage of such layers alone is left out.
[[nodiscard]] std::vector<PlanStage> stages_of(const Plan& plan, int num_layers, int first_trained_layer);

// Returns the boundaries that a backward stage reads in order to recompute its layers, from the
// lowest. Forward stages save them. REQUIRES: the range is not empty.
[[nodiscard]] constexpr LayerRange recompute_inputs(const LayerRange& layers, RecomputeGrain grain) {
  return {layers.first, grain == RecomputeGrain::kLayer ? layers.end : layers.first + 1};
}

inline constexpr std::size_t kNumPlanKinds = 3;
[[nodiscard]] PlanKind kind_of(const Plan& plan, int num_layers);

// Returns a plan with the same cuts for a round of this kind: a fused stage becomes a forward and a
// backward stage, and backward stages are left out if the kind has none. Throws rp::Error
// (kUsage) if the plan lacks what the kind needs.
[[nodiscard]] Plan plan_for(PlanKind kind, const Plan& plan, int num_layers);

// Throws rp::Error (kUsage) naming the first layer that a stage leaves out, repeats or has out of
// order.
void validate_plan(const Plan& plan, int num_layers);

// Returns the text form that PlanKind describes: "forward 0-9 10-19 | fused 20-31 | backward 10-19
// 0-9". Three or more neighbours of the same length are written as LENGTHxCOUNT: "forward 1x94 |
// fused 94-95 | backward 1x94".
[[nodiscard]] std::string plan_text(const Plan& plan, int num_layers);

// Parses the form that plan_text() writes. LENGTHxCOUNT continues where the stage before it ends:
// forward stages begin at layer 0 and ascend, backward stages begin at the fused stage and descend.
// Newlines count as `|`, and # starts a comment. Throws rp::Error (kUsage) naming the word that
// cannot be parsed, or with the message of validate_plan().
[[nodiscard]] Plan parse_plan(const std::string& text, int num_layers);

// Returns the numbers of layers of the stages in their order: "8,8,1x5,2". Three or more equal
// numbers in a row are written as LENGTHxCOUNT.
[[nodiscard]] std::string lengths_text(const std::vector<int>& lengths);
[[nodiscard]] std::string lengths_text(const std::vector<LayerRange>& stages);

// Parses the form that lengths_text() writes. Returns nothing if the text does not have this form
// or has more than `most` stages.
[[nodiscard]] std::optional<std::vector<int>> parse_lengths(const std::string& text, std::size_t most);

}  // namespace rp
