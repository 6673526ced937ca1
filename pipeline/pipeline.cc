#include "roundpipe/pipeline.h"

#include <numeric>

#include "common/text.h"
#include "pipeline/pipeline_impl.h"
#include "roundpipe/error.h"
#include "roundpipe/session.h"

namespace rp {

std::vector<double> RoundResult::losses() const {
  state_->pipeline->coordinator().wait_forward(*state_->round);
  return state_->round->losses;
}

double RoundResult::loss() const {
  const std::vector<double> all = losses();
  return std::accumulate(all.begin(), all.end(), 0.0);
}

PackedTensors RoundResult::packed_outputs() const {
  if (!state_->outputs) {
    throw Error(ExitCode::kUsage,
                "the round's outputs were not kept; call forward_backward() with {.return_outputs = true}");
  }
  return *state_->outputs;
}

Tensors RoundResult::outputs() const { return merge(packed_outputs(), state_->merge); }

double StepResult::grad_norm() const {
  return state_->pipeline->coordinator().wait_norm(state_->pipeline->number(), *state_->outcome).grad_norm;
}

bool StepResult::skipped() const {
  return state_->pipeline->coordinator().wait_norm(state_->pipeline->number(), *state_->outcome).skipped;
}

std::vector<int> StepResult::nonfinite_layers() const {
  return state_->pipeline->coordinator().wait_norm(state_->pipeline->number(), *state_->outcome).nonfinite_layers;
}

double StepResult::loss_scale() const {
  return state_->pipeline->coordinator().wait_norm(state_->pipeline->number(), *state_->outcome).loss_scale;
}

Pipeline::Pipeline(Session& session, Model model, Loss loss, PipelineOptions options)
    : Pipeline(session, std::move(model), std::vector<Loss>{std::move(loss)}, std::move(options)) {}

Pipeline::Pipeline(Session& session, Model model, std::vector<Loss> losses, PipelineOptions options)
    : impl_(std::make_unique<Impl>(session.impl(), std::move(model), std::move(losses), std::move(options))) {}

Pipeline::~Pipeline() = default;

RoundResult Pipeline::forward_backward(const Batch& inputs, const Batch& arguments, const CallOptions& options) {
  return impl_->forward_backward(inputs, arguments, options);
}

Tensors Pipeline::forward(const Batch& inputs, const CallOptions& options) { return impl_->forward(inputs, options); }

PackedTensors Pipeline::forward_packed(const Batch& inputs, const CallOptions& options) {
  return impl_->forward_packed(inputs, options);
}

RoundResult Pipeline::evaluate(const Batch& inputs, const Batch& arguments, const CallOptions& options) {
  return impl_->evaluate(inputs, arguments, options);
}

StepResult Pipeline::step(const Update& update, const StepOptions& options) { return impl_->step(update, options); }

void Pipeline::synchronize() {
  impl_->coordinator().synchronize();
  impl_->coordinator().use_newest_weights(impl_->number());
}

std::int64_t Pipeline::num_steps() const {
  return static_cast<std::int64_t>(impl_->coordinator().num_steps(impl_->number()));
}

std::vector<ParameterState> Pipeline::parameters() {
  impl_->wait_for_save();
  return impl_->parameters();
}

ParameterState Pipeline::parameter(const std::string& name) {
  std::vector<std::string> names;
  for (ParameterState& parameter : parameters()) {
    if (parameter.name == name) return std::move(parameter);
    names.push_back(parameter.name);
  }
  throw Error(ExitCode::kUsage, cat("the pipeline has no parameter '", name, "'", did_you_mean(name, names),
                                    "; a tied one has the name of its first use"));
}

std::vector<NamedParameter> Pipeline::named_optimizer_parameters() { return impl_->optimizer_parameters(); }

std::vector<at::Tensor> Pipeline::optimizer_parameters() {
  std::vector<at::Tensor> result;
  for (const NamedParameter& parameter : impl_->optimizer_parameters()) result.push_back(parameter.value);
  return result;
}

std::vector<BufferState> Pipeline::buffers() {
  synchronize();
  return impl_->buffers(Coordinator::BuffersOf::kLastRound);
}

MemoryPlan Pipeline::memory_plan() const { return impl_->memory_plan(); }

std::string Pipeline::plan_text(PlanKind kind) const { return impl_->plan_text(kind); }

std::vector<LayerTiming> Pipeline::layer_times() const { return impl_->coordinator().layer_times(impl_->number()); }

StepTimes Pipeline::step_times() const { return impl_->step_times(); }

}  // namespace rp
