#include "roundpipe/pipeline.h"

#include <c10/core/GradMode.h>

#include <numeric>

#include "common/text.h"
#include "pipeline/backward_node.h"
#include "pipeline/pipeline_impl.h"
#include "pipeline/step_check.h"
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
  RoundTraits traits = impl_->traits_of(inputs, options);
  traits.loss = impl_->loss_number(options);
  traits.keeps_outputs = options.return_outputs;
  if (traits.keeps_outputs) impl_->refuse_outputs_on_several_nodes("forward_backward() with return_outputs");
  impl_->runtime()->check_room_for_gradients(impl_->number());
  RoundResult::State state{.pipeline = impl_.get(),
                           .round = impl_->accept(traits, inputs, arguments, options),
                           .outputs = {},
                           .merge = options.merge_outputs.value_or(impl_->options().merge_outputs)};
  if (traits.keeps_outputs) state.outputs = impl_->outputs_of(state.round);
  return RoundResult(std::make_shared<RoundResult::State>(std::move(state)));
}

PackedTensors Pipeline::forward_packed(const Batch& inputs, const CallOptions& options) {
  impl_->refuse_outputs_on_several_nodes("forward_packed()");
  RoundTraits traits = impl_->traits_of(inputs, options);
  traits.kind = RoundKind::kForward;
  traits.mode = RoundMode::kEvaluate;
  return impl_->outputs_of(impl_->accept(traits, inputs, {}, options));
}

RoundResult Pipeline::evaluate(const Batch& inputs, const Batch& arguments, const CallOptions& options) {
  if (options.return_outputs) {
    throw Error(ExitCode::kUsage,
                "evaluate() with return_outputs: it gives losses only; call forward_packed() for outputs");
  }
  RoundTraits traits = impl_->traits_of(inputs, options);
  traits.kind = RoundKind::kForward;
  traits.mode = RoundMode::kEvaluate;
  traits.evaluates_loss = true;
  traits.loss = impl_->loss_number(options);
  return RoundResult(std::make_shared<RoundResult::State>(
      RoundResult::State{.pipeline = impl_.get(),
                         .round = impl_->accept(traits, inputs, arguments, options),
                         .outputs = {},
                         .merge = {}}));
}

Tensors Pipeline::forward(const Batch& inputs, const CallOptions& options) {
  impl_->refuse_outputs_on_several_nodes("forward()");
  const Merge how = options.merge_outputs.value_or(impl_->options().merge_outputs);
  if (!options.requires_grad.value_or(at::GradMode::is_enabled())) {
    return merge(forward_packed(inputs, options), how);
  }
  if (!at::GradMode::is_enabled()) {
    throw Error(ExitCode::kUsage,
                "forward() with requires_grad, but autograd is switched off in this thread (no_grad)");
  }
  if (how.function) {
    throw Error(ExitCode::kUsage,
                "Merge::function is not for a forward() with gradients, because it does not say how to split them; use "
                "dimensions");
  }
  RoundTraits traits = impl_->traits_of(inputs, options);
  traits.kind = RoundKind::kForward;
  const Split split = options.split_inputs.value_or(impl_->options().split_inputs);
  for (const at::Tensor& input : inputs.tensors) traits.input_gradient |= input.defined() && input.requires_grad();
  // There is no backward if no weights are trained and no gradient of the inputs is requested.
  traits.keeps_graph = traits.input_gradient || impl_->coordinator().pipeline_state(impl_->number()).is_trained;
  if (traits.input_gradient && split.function) {
    throw Error(ExitCode::kUsage,
                "Split::function is not for inputs that require gradients, because it does not say how to join the "
                "gradients; use dimensions");
  }
  const std::shared_ptr<Round> round = impl_->accept(traits, inputs, {}, options);
  auto graph = std::make_shared<OpenGraph>(impl_->runtime(), round);  // an exception from here on drops the round
  const PackedTensors packed = impl_->outputs_of(round);
  const std::vector<Tensors> microbatches = views_of(packed);
  Tensors outputs;
  {
    const c10::NoGradGuard no_grad;
    outputs = merge(microbatches, how);
  }
  if (!traits.keeps_graph) return outputs;
  return join_graph(std::move(graph), inputs.tensors, split, std::move(outputs), microbatches, how);
}

StepResult Pipeline::step(const Update& update, const StepOptions& options) {
  Coordinator& coordinator = impl_->coordinator();
  check_step(update, options, impl_->options());
  if (options.router_bias_update_rate > 0 && !impl_->has_corrections()) {
    throw Error(ExitCode::kUsage, cat("step(): router_bias_update_rate is ", options.router_bias_update_rate,
                                      ", but the model has no corrections of routers that are trained; load it with "
                                      "TrainedParts::corrections, or leave the rate out"));
  }
  if (coordinator.pipeline_state(impl_->number()).rounds_since_step == 0) {
    throw Error(ExitCode::kUsage,
                "step() after 0 rounds with gradients since the last one; call forward_backward() first");
  }
  coordinator.round_group().check_complete("step()");
  if (update.function()) impl_->refuse_masters_on_several_nodes("step() with a function");
  StepRequest request{.rules = {}, .options = options};
  for (const ParameterGroup& group : update.groups()) request.rules.push_back(group.rule);
  if (update.function()) {
    request.function = [function = update.function(), &runner = impl_->function_update()](
                           Version version, bool skipped, const GradientWriter& write_gradient) {
      runner.run(version, skipped, write_gradient, function);
    };
  } else if (update.groups().size() != 1 || update.groups().front().contains) {
    request.spans = group_parameters(impl_->runtime()->store().catalogue(), impl_->number(), update.groups());
  }
  auto outcome = coordinator.accept_step(impl_->number(), std::move(request));
  if (update.function() && !options.asynchronous) coordinator.wait_step(impl_->number());
  return StepResult(
      std::make_shared<StepResult::State>(StepResult::State{.pipeline = impl_.get(), .outcome = std::move(outcome)}));
}

void Pipeline::synchronize() {
  impl_->coordinator().synchronize();
  impl_->coordinator().use_newest_weights(impl_->number());
}

std::int64_t Pipeline::num_steps() const {
  return static_cast<std::int64_t>(impl_->coordinator().pipeline_state(impl_->number()).num_steps);
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

std::map<std::string, at::Tensor> Pipeline::masters(const std::function<bool(const ParameterState&)>& wants) {
  synchronize();
  impl_->wait_for_save();
  return impl_->masters(wants);
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

std::string Pipeline::plan_text(PlanKind kind) const {
  return rp::plan_text(impl_->coordinator().plan(impl_->number(), kind), impl_->model().num_layers());
}

std::vector<LayerTiming> Pipeline::layer_times() const { return impl_->coordinator().layer_times(impl_->number()); }

StepTimes Pipeline::step_times() const {
  impl_->coordinator().synchronize();
  return impl_->runtime()->step_times(impl_->number());
}

}  // namespace rp
