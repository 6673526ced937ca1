#include "pipeline/pipeline_impl.h"

#include <algorithm>
#include <cmath>

#include "common/text.h"
#include "pipeline/batch_split.h"
#include "pipeline/description.h"
#include "pipeline/process_end.h"
#include "pipeline/tensors.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

void check_options(const PipelineOptions& options, const Model& model, const std::vector<Loss>& losses) {
  const auto refuse = [](const std::string& what) { throw Error(ExitCode::kUsage, what); };
  if (options.num_microbatches < 1) refuse(cat("num_microbatches is ", options.num_microbatches, ", but must be at least 1"));
  if (options.rounds_per_step < 1) refuse(cat("rounds_per_step is ", options.rounds_per_step, ", but must be at least 1"));
  if (model.dtype() != at::kFloat && model.dtype() != at::kBFloat16 && model.dtype() != at::kHalf) {
    refuse(cat("the model's dtype is ", at::toString(model.dtype()), "; at::kFloat, at::kBFloat16 and at::kHalf are possible"));
  }
  for (const Loss& loss : losses) {
    if (!loss.function) refuse(cat("the loss '", loss.name, "' has no function; make one with rp::loss(name, function)"));
  }
}

void check_rule(const AdamW& rule, const StepOptions& options) {
  const auto check = [](const char* name, double value, bool is_good, const char* range) {
    if (!is_good) throw Error(ExitCode::kUsage, cat("step(): ", name, " is ", value, ", but must be ", range));
  };
  const auto is_rate = [](double value) { return std::isfinite(value) && value >= 0; };
  check("learning_rate", rule.learning_rate, is_rate(rule.learning_rate), "a number from 0 on");
  check("weight_decay", rule.weight_decay, is_rate(rule.weight_decay), "a number from 0 on");
  check("beta1", rule.beta1, rule.beta1 >= 0 && rule.beta1 < 1, "from 0 to below 1");
  check("beta2", rule.beta2, rule.beta2 >= 0 && rule.beta2 < 1, "from 0 to below 1");
  check("epsilon", rule.epsilon, is_rate(rule.epsilon), "a number from 0 on");
  check("max_grad_norm", options.max_grad_norm, is_rate(options.max_grad_norm), "a number from 0 on (0: no clipping)");
}

}  // namespace

Pipeline::Impl::Impl(Session::Impl& session, Model model, std::vector<Loss> losses, PipelineOptions options)
    : session_(session),
      runtime_(session.runtime()),
      model_(std::move(model)),
      losses_(std::move(losses)),
      options_(std::move(options)) {
  check_options(options_, model_, losses_);
  number_ = session_.add(this);
}

Pipeline::Impl::~Impl() { session_.remove(this); }

PipelineRequest Pipeline::Impl::request() const {
  return {.name = options_.name,
          .seed = options_.seed,
          .layers = describe_layers(model_),
          .num_copies = options_.asynchronous ? 2U : 1U,
          .with_sums = options_.rounds_per_step > 1};
}

const PipelineRecord& Pipeline::Impl::record() const {
  return runtime_.store_if_created()->catalogue().pipelines()[static_cast<std::size_t>(number_)];
}

// Rounds and steps

RoundResult Pipeline::Impl::forward_backward(const Tensors& inputs, const Tensors& arguments) {
  Coordinator& coordinator = this->coordinator();
  if (stop_signal() != 0) throw Interrupted(stop_signal());
  if (losses_.empty()) {
    throw Error(ExitCode::kUsage, "forward_backward() of a pipeline without a loss; declare one when the pipeline is made");
  }
  if (coordinator.rounds_since_step(number_) >= options_.rounds_per_step) {
    throw Error(ExitCode::kUsage, cat("rounds_per_step is ", options_.rounds_per_step, ": call step() before round ",
                                      options_.rounds_per_step + 1));
  }
  const BatchSplit split(inputs, arguments, options_.num_microbatches);
  RoundTraits traits;
  traits.pipeline = number_;
  traits.num_microbatches = options_.num_microbatches;
  return RoundResult(std::make_shared<RoundResult::State>(
      RoundResult::State{.pipeline = this, .round = coordinator.accept_round(traits, split.blocks())}));
}

StepResult Pipeline::Impl::step(const AdamW& rule, const StepOptions& options) {
  Coordinator& coordinator = this->coordinator();
  check_rule(rule, options);
  if (coordinator.rounds_since_step(number_) != options_.rounds_per_step) {
    throw Error(ExitCode::kUsage, cat("step() after ", coordinator.rounds_since_step(number_), " rounds, but rounds_per_step is ",
                                      options_.rounds_per_step));
  }
  if (options.asynchronous != options_.asynchronous) {
    throw Error(ExitCode::kUsage, cat("step() is ", options.asynchronous ? "" : "not ", "asynchronous, but the pipeline is ",
                                      options_.asynchronous ? "" : "not ", "(PipelineOptions::asynchronous)"));
  }
  return StepResult(std::make_shared<StepResult::State>(
      StepResult::State{.pipeline = this, .outcome = coordinator.accept_step(number_, rule, options)}));
}

// Reading

std::vector<ParameterState> Pipeline::Impl::parameters(std::uint64_t steps_ago) {
  Coordinator& coordinator = this->coordinator();
  Store& store = runtime_.store();
  const std::uint64_t version = coordinator.version(number_) - std::min(coordinator.num_steps(number_), steps_ago);
  const Catalogue& catalogue = store.catalogue();
  std::vector<ParameterState> result;
  for (int layer = 0; layer < model_.num_layers(); ++layer) {
    for (const TensorRecord& tensor : catalogue.tensors_of(static_cast<int>(record().first_layer) + layer)) {
      if (!is_first_use(catalogue, tensor)) continue;
      const BlockRecord& block = catalogue.blocks()[catalogue.uses()[tensor.use].block];
      ParameterState parameter;
      parameter.layer = layer;
      parameter.parameter = tensor.name.data();
      parameter.name = cat(layer, ".", parameter.parameter);
      parameter.working = parameter_view(store, tensor, version % block.num_copies);
      if (block.is_trained != 0) {
        parameter.master = block.dtype == DType::kFloat32 ? parameter.working : state_view(store, tensor, block.master_offset);
        parameter.moment1 = state_view(store, tensor, block.moment1_offset);
        parameter.moment2 = state_view(store, tensor, block.moment2_offset);
      }
      result.push_back(std::move(parameter));
    }
  }
  return result;
}

std::vector<BufferState> Pipeline::Impl::buffers() {
  Coordinator& coordinator = this->coordinator();
  std::vector<BufferState> result;
  for (const auto& [layer, newest] : coordinator.buffers(number_)) {
    std::uint64_t bytes = 0;
    const std::byte* block = coordinator.block(*newest.round, newest.row, 0, bytes);
    const BlockHead head = read_block_head(block, bytes);
    const Tensors values = tensors_over(head.views(block + head.data_offset));
    const std::vector<std::string>& names = runtime_.buffer_names(number_).at(layer);
    for (std::size_t i = 0; i < values.size(); ++i) {
      result.push_back({.name = cat(layer, ".", names[i]), .layer = layer, .buffer = names[i],
                        .value = values[i].defined() ? values[i].clone() : values[i]});
    }
  }
  return result;
}

void Pipeline::Impl::set_buffers(const std::vector<BufferState>& buffers) {
  std::map<int, Tensors> values;
  for (const BufferState& buffer : buffers) values[buffer.layer].push_back(buffer.value);
  std::map<int, BlockContents> blocks;
  for (auto& [layer, tensors] : values) blocks[layer] = {.tensors = views_of(tensors)};
  coordinator().set_buffers(number_, blocks);
}

MemoryPlan Pipeline::Impl::memory_plan() const {
  MemoryPlan plan;
  if (runtime_.store_if_created() == nullptr) return plan;
  const Catalogue& catalogue = runtime_.store_if_created()->catalogue();
  plan.num_parameters = static_cast<std::int64_t>(catalogue.num_parameters());
  const auto add = [&plan](std::string purpose, std::uint64_t bytes) { plan.items.push_back({std::move(purpose), bytes}); };
  add(options_.asynchronous ? "weights (two working copies)" : "weights", catalogue.parameter_bytes());
  add("gradients", catalogue.gradient_bytes());
  add("optimizer state", catalogue.state_bytes());
  const std::uint64_t total = catalogue.parameter_bytes() + catalogue.gradient_bytes() + catalogue.state_bytes();
  plan.bytes_per_parameter = static_cast<double>(total) / static_cast<double>(std::max<std::int64_t>(1, plan.num_parameters));
  return plan;
}

std::string Pipeline::Impl::plan_text() { return rp::plan_text(coordinator().plan(number_), model_.num_layers()); }

}  // namespace rp
