#include "pipeline/pipeline_impl.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "common/text.h"
#include "common/usable_cores.h"
#include "device/cpu_device.h"
#include "hoststore/memory_limit.h"
#include "pipeline/batch_split.h"
#include "pipeline/description.h"
#include "pipeline/process_end.h"
#include "pipeline/tensors.h"
#include "pipeline/torch_stage_executor.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

Plan read_plan_file(const std::string& path, int num_layers) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    throw Error(ExitCode::kUsage, cat("cannot read the plan file ", path, "; --plan takes `auto` or a file such as "
                                      "`forward 0-3 | fused 4-7 | backward 0-3`"));
  }
  try {
    return parse_plan(text.str(), num_layers);
  } catch (const Error& error) {
    throw Error(error.code(), cat(path, ": ", error.what()));
  }
}

// Seeds the default generator for the initial weights of one layer and puts the program's own state back at the end.
class InitialSeed {
 public:
  InitialSeed(std::uint64_t seed, int layer) : generator_(at::detail::getDefaultCPUGenerator()), saved_(generator_.get_state()) {
    generator_.set_current_seed(seed * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(layer) + 1);
  }
  ~InitialSeed() { generator_.set_state(saved_); }
  InitialSeed(const InitialSeed&) = delete;
  InitialSeed& operator=(const InitialSeed&) = delete;

 private:
  at::Generator generator_;
  at::Tensor saved_;
};

BoardPhase board_phase(Phase phase) {
  switch (phase) {
    case Phase::kForward: return BoardPhase::kForward;
    case Phase::kFused: return BoardPhase::kFused;
    case Phase::kBackward: return BoardPhase::kBackward;
  }
  return BoardPhase::kNone;
}

at::IntArrayRef shape_of(const TensorRecord& tensor) {
  return {tensor.desc.shape.data(), static_cast<std::size_t>(tensor.desc.rank)};
}

void check_options(const PipelineOptions& options, const Model& model, const Loss& loss) {
  const auto refuse = [](const std::string& what) { throw Error(ExitCode::kUsage, what); };
  if (options.num_microbatches < 1) refuse(cat("num_microbatches is ", options.num_microbatches, ", but must be at least 1"));
  if (options.rounds_per_step < 1) refuse(cat("rounds_per_step is ", options.rounds_per_step, ", but must be at least 1"));
  if (model.dtype() != at::kFloat && model.dtype() != at::kBFloat16 && model.dtype() != at::kHalf) {
    refuse(cat("the model's dtype is ", at::toString(model.dtype()), "; at::kFloat, at::kBFloat16 and at::kHalf are possible"));
  }
  if (!loss.function) refuse("the pipeline has no loss function; make one with rp::loss(name, function)");
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

Pipeline::Impl::Impl(Session::Impl& session, Model model, Loss loss, PipelineOptions options)
    : session_(session), model_(std::move(model)), loss_(std::move(loss)), options_(options) {
  check_options(options_, model_, loss_);
  session_.add(this);
}

Pipeline::Impl::~Impl() { session_.remove(this); }

// The coordinator's start

void Pipeline::Impl::create_store() {
  const EffectiveSettings& settings = session_.settings();
  StoreSettings store_settings;
  store_settings.backing = settings.store;
  store_settings.num_workers = static_cast<std::uint32_t>(session_.num_workers());
  store_settings.num_microbatches = static_cast<std::uint32_t>(options_.num_microbatches);
  store_settings.stage_buffers = settings.prefetch ? 2 : 1;
  store_settings.threads_per_worker = static_cast<std::uint32_t>(settings.threads_per_worker);
  store_settings.seed = options_.seed;
  store_settings.fingerprint = fingerprint(model_, loss_);
  store_settings.build_id = build_id();
  store_settings.arena_limit_bytes = available_memory();
  const Catalogue catalogue =
      Catalogue::lay_out(describe_layers(model_), options_.asynchronous ? 2 : 1, options_.rounds_per_step > 1);
  store_ = Store::create(store_settings, catalogue);
  (void)first_plan();  // a plan that is wrong is found before any worker starts
  write_initial_weights();
  if (settings.store.empty() && store_->backing() == Backing::kMemfd) {
    std::fprintf(stderr, "roundpipe: /dev/shm is too small for the host store (%s): using memfd instead\n",
                 bytes_text(Store::needed(store_settings, catalogue).total()).c_str());
  }
}

void Pipeline::Impl::write_initial_weights() {
  const c10::NoGradGuard no_grad;
  const Catalogue& catalogue = store_->catalogue();
  for (int index = 0; index < model_.num_layers(); ++index) {
    const LayerSpec& spec = model_.layers()[static_cast<std::size_t>(index)];
    const InitialSeed seed(options_.seed, index);
    const std::unique_ptr<Layer> layer = spec.make();
    const std::vector<NamedParameter> values = layer->parameters();
    compare_parameters(values, catalogue, index);
    const auto tensors = catalogue.tensors_of(index);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const UseRecord& use = catalogue.uses()[tensors[i].use];
      const BlockRecord& block = catalogue.blocks()[use.block];
      if (catalogue.uses()[block.first_use].layer != use.layer) continue;  // tied: the first use gives the value
      const at::Tensor working =
          tensor_over(store_->parameters(block.parameter_offset[0]) + tensors[i].element_offset * dtype_bytes(block.dtype),
                      shape_of(tensors[i]), scalar_type_of(block.dtype));
      at::Tensor master = working;
      if (block.dtype != DType::kFloat32) {
        master = tensor_over(reinterpret_cast<std::byte*>(store_->state(block.master_offset) + tensors[i].element_offset),
                             shape_of(tensors[i]), at::kFloat);
      }
      if (spec.initialize) {
        spec.initialize(values[i].name, master);
      } else {
        master.copy_(values[i].value);
      }
      if (block.dtype != DType::kFloat32) working.copy_(master);
    }
  }
}

std::uint64_t Pipeline::Impl::max_stage_bytes() const {
  // A worker holds two stages' weights, gradients in fp32 and in the working dtype: about six times a stage.
  return available_memory() / (12 * static_cast<std::uint64_t>(session_.num_workers()));
}

Plan Pipeline::Impl::first_plan() const {
  const Catalogue& catalogue = store_->catalogue();
  if (session_.settings().plan != "auto") {
    return read_plan_file(session_.settings().plan, catalogue.num_layers());
  }
  std::vector<LayerCost> costs;
  for (int layer = 0; layer < catalogue.num_layers(); ++layer) {
    LayerCost cost;
    for (const std::uint32_t use : catalogue.uses_of(layer)) {
      cost.bytes += catalogue.blocks()[catalogue.uses()[use].block].bytes();
    }
    const double given = model_.layers()[static_cast<std::size_t>(layer)].forward_cost;
    cost.forward = given > 0 ? given : static_cast<double>(cost.bytes);
    cost.backward = 2 * cost.forward;
    costs.push_back(cost);
  }
  return balanced_plan(costs, session_.num_workers(), max_stage_bytes());
}

void Pipeline::Impl::start_coordinator() {
  CoordinatorOptions options;
  options.rounds_per_step = options_.rounds_per_step;
  options.asynchronous = options_.asynchronous;
  options.optimizer_threads = usable_cores();
  options.plan = first_plan();
  options.replan = session_.settings().plan == "auto";
  options.max_stage_bytes = max_stage_bytes();
  coordinator_ = std::make_unique<Coordinator>(*store_, options);
}

void Pipeline::Impl::end_coordinator() {
  coordinator_.reset();
  if (store_) store_->epoch().publish(kEndEpoch);  // also where it never began: a worker may be there
}

// The worker's part

void Pipeline::Impl::compare_with(const Store& store) const {
  if (store.header().build_id != build_id()) {
    throw Error(ExitCode::kUserError, "the processes differ: the program's file was replaced between the start of the "
                                      "coordinator and of this worker; start the run again");
  }
  compare_layers(model_, store.catalogue());
  if (store.header().fingerprint != fingerprint(model_, loss_)) {
    throw Error(ExitCode::kUserError, cat("the processes differ: the loss ('", loss_.name,
                                          "' here), tied parameters or dtype are not those of the coordinator"));
  }
}

void Pipeline::Impl::serve(Store& store, int worker, std::optional<FaultBoardEntry> board) {
  ProgressReport report_task;
  if (board) {
    board->publish_state(ProcessState::kIdle);
    report_task = [board](const Command* command, int microbatch) mutable {
      board->publish_state(command == nullptr ? ProcessState::kIdle : ProcessState::kBusy);
      if (command == nullptr) return board->publish_no_task();
      board->publish_task({.epoch = static_cast<std::int64_t>(epoch_of(command->slot)),
                           .slot = static_cast<std::int64_t>(number_of(command->slot)),
                           .phase = board_phase(command->phase),
                           .first_layer = command->first_layer,
                           .end_layer = command->end_layer,
                           .layer = -1,
                           .microbatch = microbatch});
    };
  }
  SequenceWord& heartbeat = store.worker_words(worker).heartbeat;
  auto report_layer = [board, &heartbeat](int layer, int microbatch) mutable {
    heartbeat.publish_quietly(heartbeat.observe() + 1);
    if (!board) return;
    board->publish_heartbeat();
    board->publish_position(layer, microbatch);
  };
  CpuDevice device;
  TorchStageExecutor executor(model_, loss_, store.catalogue(), static_cast<int>(store.header().threads_per_worker),
                              store.header().seed, std::move(report_layer));
  Worker(store, worker, device, executor, std::move(report_task)).serve();
}

// Rounds and steps

Coordinator& Pipeline::Impl::coordinator() {
  if (!coordinator_) {
    throw Error(ExitCode::kUsage, "call Session::start() first: before it a pipeline is only described");
  }
  return *coordinator_;
}

RoundResult Pipeline::Impl::forward_backward(const Tensors& inputs, const Tensors& arguments) {
  Coordinator& coordinator = this->coordinator();
  if (stop_signal() != 0) throw Interrupted(stop_signal());
  if (coordinator.rounds_since_step() >= options_.rounds_per_step) {
    throw Error(ExitCode::kUsage, cat("rounds_per_step is ", options_.rounds_per_step, ": call step() before round ",
                                      options_.rounds_per_step + 1));
  }
  const BatchSplit split(inputs, arguments, options_.num_microbatches);
  return RoundResult(std::make_shared<RoundResult::State>(
      RoundResult::State{.pipeline = this, .outcome = coordinator.accept_round(split.microbatches(), 0)}));
}

StepResult Pipeline::Impl::step(const AdamW& rule, const StepOptions& options) {
  Coordinator& coordinator = this->coordinator();
  check_rule(rule, options);
  if (coordinator.rounds_since_step() != options_.rounds_per_step) {
    throw Error(ExitCode::kUsage, cat("step() after ", coordinator.rounds_since_step(), " rounds, but rounds_per_step is ",
                                      options_.rounds_per_step));
  }
  if (options.asynchronous != options_.asynchronous) {
    throw Error(ExitCode::kUsage, cat("step() is ", options.asynchronous ? "" : "not ", "asynchronous, but the pipeline is ",
                                      options_.asynchronous ? "" : "not ", "(PipelineOptions::asynchronous)"));
  }
  return StepResult(std::make_shared<StepResult::State>(
      StepResult::State{.pipeline = this, .outcome = coordinator.accept_step(rule, options)}));
}

// Reading

std::vector<ParameterState> Pipeline::Impl::parameters(std::uint64_t steps_ago) {
  const std::uint64_t version = coordinator().version() - std::min(coordinator().num_steps(), steps_ago);
  const Catalogue& catalogue = store_->catalogue();
  std::vector<ParameterState> result;
  for (int layer = 0; layer < catalogue.num_layers(); ++layer) {
    for (const TensorRecord& tensor : catalogue.tensors_of(layer)) {
      const UseRecord& use = catalogue.uses()[tensor.use];
      const BlockRecord& block = catalogue.blocks()[use.block];
      if (catalogue.uses()[block.first_use].layer != use.layer) continue;
      const auto state = [&](std::uint64_t offset) {
        return tensor_over(reinterpret_cast<std::byte*>(store_->state(offset) + tensor.element_offset), shape_of(tensor), at::kFloat);
      };
      ParameterState parameter;
      parameter.layer = layer;
      parameter.parameter = tensor.name.data();
      parameter.name = cat(layer, ".", parameter.parameter);
      parameter.working = tensor_over(store_->parameters(block.parameter_offset[version % block.num_copies]) +
                                          tensor.element_offset * dtype_bytes(block.dtype),
                                      shape_of(tensor), scalar_type_of(block.dtype));
      parameter.master = block.dtype == DType::kFloat32 ? parameter.working : state(block.master_offset);
      parameter.moment1 = state(block.moment1_offset);
      parameter.moment2 = state(block.moment2_offset);
      result.push_back(std::move(parameter));
    }
  }
  return result;
}

MemoryPlan Pipeline::Impl::memory_plan() const {
  MemoryPlan plan;
  if (!store_) return plan;
  const Catalogue& catalogue = store_->catalogue();
  plan.num_parameters = static_cast<std::int64_t>(catalogue.num_parameters());
  const auto add = [&plan](std::string purpose, std::uint64_t bytes) { plan.items.push_back({std::move(purpose), bytes}); };
  add(options_.asynchronous ? "weights (two working copies)" : "weights", catalogue.parameter_bytes());
  add("gradients", catalogue.gradient_bytes());
  add("optimizer state", catalogue.state_bytes());
  const std::uint64_t total = catalogue.parameter_bytes() + catalogue.gradient_bytes() + catalogue.state_bytes();
  plan.bytes_per_parameter = static_cast<double>(total) / static_cast<double>(std::max<std::int64_t>(1, plan.num_parameters));
  return plan;
}

std::string Pipeline::Impl::plan_text() {
  return rp::plan_text(coordinator().plan(), model_.num_layers());
}

}  // namespace rp
