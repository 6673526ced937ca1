// coordinator/updates/step_request.h
// The request for an optimizer step, and its outcome.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "coordinator/updates/loss_scaler.h"
#include "coordinator/updates/parameter_groups.h"
#include "roundpipe/optimizer.h"

namespace rp {

// The outcome of a step, for which its caller waits. Guarded by the mutex of Updates.
struct StepOutcome {
  // The fields below are set and, where steps are recorded, the step is recorded: a step that a program has reported
  // must not be lost with the program.
  bool is_final = false;
  double grad_norm = 0;               // divided by the loss scale
  bool skipped = false;               // because a gradient is not finite
  double loss_scale = 1;              // of the step's rounds
  std::vector<int> nonfinite_layers;  // layers of the pipeline that have a gradient that is not finite
};

// Writes the final gradient of a weight group, scaled and clipped, in fp32.
using GradientWriter = std::function<void(GroupId group, float* gradient)>;

// Makes masters and working copies of `version` in all trained groups, except corrections. If the step is skipped, they
// have the same weights as the version before. Called when all gradients are final and no task uses
// the copies that it overwrites.
using WholeUpdate = std::function<void(Version version, bool skipped, const GradientWriter& write_gradient)>;

// Describes what a step does.
struct StepRequest {
  std::vector<UpdateRule> rules;  // by parameter group
  ParameterGroupSpans spans{};    // empty: all weight groups belong to the first parameter group
  WholeUpdate function{};         // applied instead of the rules, if it is not empty
  StepOptions options{};
  // Set by Coordinator::accept_step():
  std::uint64_t num_rounds = 0;    // of the step, with gradients
  std::uint64_t num_forwards = 0;  // training rounds of the step, also those without a backward pass
  std::uint64_t steps = 0;         // since the start of training, with this one
  std::uint64_t rounds = 0;        // the same
  std::uint64_t call_hash = 0;     // of all calls up to this one, which must be the same on all nodes
};

// The part of a saved state that describes the steps before it.
struct UpdateHistory {
  std::uint64_t num_applied = 0;  // steps that were not skipped: Adam's t
  LossScaleHistory loss_scale{};
};

}  // namespace rp
