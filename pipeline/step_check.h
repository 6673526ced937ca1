// pipeline/step_check.h
// Validates the options of steps and pipelines.
#pragma once

#include "roundpipe/pipeline.h"

namespace rp {

// Each throws rp::Error (kUsage) that names the field, its value and the possible values.
void check_step(const Update& update, const StepOptions& step, const PipelineOptions& pipeline);
void check_loss_scaling(const LossScaling& scaling);
void check_limits(const PlanLimits& limits);

}  // namespace rp
