// scheduler/plan.h
// How a model is cut into stages. Pure values; no process, no clock.
#pragma once

#include <string>
#include <vector>

namespace rp {

// Layers [first, end).
struct LayerRange {
  int first = 0;
  int end = 0;
  bool operator==(const LayerRange&) const = default;
};

// Forward stages in ascending order cover [0, fused_start); the fused stage covers [fused_start, num_layers) and is
// never empty; backward stages in descending order cover [0, fused_start) again, cut independently.
struct Plan {
  std::vector<LayerRange> forward;
  int fused_start = 0;
  std::vector<LayerRange> backward;

  [[nodiscard]] int num_stages() const { return static_cast<int>(forward.size() + 1 + backward.size()); }
  bool operator==(const Plan&) const = default;
};

// The same cuts for a round without a loss: the fused stage is a forward stage, and the first backward stage where
// `with_backward`, else there are none. (fused_start is num_layers then.)
[[nodiscard]] Plan without_fused_stage(const Plan& plan, int num_layers, bool with_backward);

// Throws rp::Error (kUsage) naming the first layer that a stage misses, repeats or has out of order.
void validate_plan(const Plan& plan, int num_layers);

// "forward 0-9 10-19 | fused 20-31 | backward 10-19 0-9", layers counted from 0, last layer included.
[[nodiscard]] std::string plan_text(const Plan& plan, int num_layers);

// Reads plan_text()'s form; newlines count as `|`, and # starts a comment. Throws rp::Error (kUsage) naming the word
// that it does not understand, and what validate_plan() finds.
[[nodiscard]] Plan parse_plan(const std::string& text, int num_layers);

}  // namespace rp
