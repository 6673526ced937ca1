// coordinator/updates/step_request.h
// What a step is to do, and what comes of it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "coordinator/updates/loss_scaler.h"
#include "coordinator/updates/parameter_groups.h"
#include "roundpipe/optimizer.h"

namespace rp {

// What the caller of a step waits for. Guarded by Updates' mutex.
struct StepOutcome {
  bool norm_known = false;
  double grad_norm = 0;               // loss scale taken out
  bool skipped = false;               // known with the norm, as the rest
  double loss_scale = 1;              // that the step's rounds had
  std::vector<int> nonfinite_layers;  // of the pipeline: those with a gradient that is not finite
};

// Writes the final gradient of a weight group, scaled and clipped, in fp32.
using GradientWriter = std::function<void(std::uint32_t group, float* gradient)>;

// Makes masters and working copies of `version` in all trained groups; those of the version before once more if the
// step is skipped. Called when all gradients are final and nobody uses the copies that it overwrites.
using WholeUpdate = std::function<void(std::uint64_t version, bool skipped, const GradientWriter& write_gradient)>;

// What a step does.
struct StepRequest {
  std::vector<UpdateRule> rules;  // by parameter group
  ParameterGroupSpans spans{};    // empty: all weight groups are of the first parameter group
  WholeUpdate function{};         // instead of rules
  StepOptions options{};
};

// What a saved state knows of the steps before it.
struct UpdateHistory {
  std::uint64_t num_applied = 0;  // steps that were not skipped: Adam's t
  LossScaleHistory loss_scale{};
};

}  // namespace rp
