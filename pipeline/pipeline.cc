#include "roundpipe/pipeline.h"

#include "pipeline/pipeline_impl.h"
#include "roundpipe/session.h"

namespace rp {

double RoundResult::loss() const { return state_->pipeline->coordinator().wait_loss(*state_->outcome); }

double StepResult::grad_norm() const { return state_->pipeline->coordinator().wait_norm(*state_->outcome).grad_norm; }
bool StepResult::skipped() const { return state_->pipeline->coordinator().wait_norm(*state_->outcome).skipped; }

Pipeline::Pipeline(Session& session, Model model, Loss loss, PipelineOptions options)
    : impl_(std::make_unique<Impl>(session.impl(), std::move(model), std::move(loss), options)) {}

Pipeline::~Pipeline() = default;

RoundResult Pipeline::forward_backward(const Tensors& inputs, const Tensors& arguments) {
  return impl_->forward_backward(inputs, arguments);
}

StepResult Pipeline::step(const AdamW& rule, const StepOptions& options) { return impl_->step(rule, options); }

void Pipeline::synchronize() { impl_->coordinator().synchronize(); }

std::int64_t Pipeline::num_steps() const { return static_cast<std::int64_t>(impl_->coordinator().num_steps()); }

std::vector<ParameterState> Pipeline::parameters() { return impl_->parameters(); }

MemoryPlan Pipeline::memory_plan() const { return impl_->memory_plan(); }

std::string Pipeline::plan_text() const { return impl_->plan_text(); }

}  // namespace rp
