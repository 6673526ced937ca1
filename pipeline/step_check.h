// pipeline/step_check.h
// What a step and a pipeline may be asked for.
#pragma once

#include "roundpipe/pipeline.h"

namespace rp {

// Throw rp::Error (kUsage) naming the field, its value and what is possible.
void check_step(const Update& update, const StepOptions& step, const PipelineOptions& pipeline);
void check_loss_scaling(const LossScaling& scaling);
void check_limits(const PlanLimits& limits);

}  // namespace rp
