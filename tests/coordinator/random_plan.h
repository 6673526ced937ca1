// tests/coordinator/random_plan.h
// Draws plans at random. Forward and backward stages are cut independently.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "scheduler/plan.h"

namespace rp::test {

inline std::vector<LayerRange> random_cuts(std::mt19937& random, int end) {
  std::vector<LayerRange> ranges;
  for (int first = 0; first < end;) {
    const int next = first + 1 + static_cast<int>(random() % static_cast<unsigned>(end - first));
    ranges.push_back({first, next});
    first = next;
  }
  return ranges;
}

inline Plan random_plan(std::mt19937& random, int num_layers) {
  Plan plan;
  plan.fused_start = static_cast<int>(random() % static_cast<unsigned>(num_layers));
  plan.forward = random_cuts(random, plan.fused_start);
  plan.backward = random_cuts(random, plan.fused_start);
  std::reverse(plan.backward.begin(), plan.backward.end());
  validate_plan(plan, num_layers);
  return plan;
}

}  // namespace rp::test
