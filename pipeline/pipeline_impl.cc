#include "pipeline/pipeline_impl.h"

#include <algorithm>
#include <cstdio>

#include "common/run_depth.h"
#include "common/text.h"
#include "models/layers/scalar_type.h"
#include "pipeline/batch_split.h"
#include "pipeline/description/description.h"
#include "pipeline/description/tensors.h"
#include "pipeline/master_gathering.h"
#include "pipeline/memory_plan.h"
#include "pipeline/process/process_end.h"
#include "pipeline/state_save.h"
#include "pipeline/step_check.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

void check_options(const PipelineOptions& options, const Model& model, const std::vector<Loss>& losses) {
  const auto refuse = [](const std::string& what) { throw Error(ExitCode::kUsage, what); };
  if (options.num_microbatches < 1)
    refuse(cat("num_microbatches is ", options.num_microbatches, ", but must be at least 1"));
  if (options.rounds_per_step < 1)
    refuse(cat("rounds_per_step is ", options.rounds_per_step, ", but must be at least 1"));
  if (!is_working_dtype(model.dtype())) {
    refuse(cat("the model's dtype is ", at::toString(model.dtype()),
               "; at::kFloat, at::kBFloat16 and at::kHalf are possible"));
  }
  if (options.num_moments < 0 || options.num_moments > 2)
    refuse(cat("num_moments is ", options.num_moments, ", but must be 0, 1 or 2"));
  if (options.optimizer_dtype != at::kFloat && options.optimizer_dtype != at::kDouble &&
      options.optimizer_dtype != model.dtype()) {
    refuse(cat("optimizer_dtype is ", at::toString(options.optimizer_dtype),
               "; at::kFloat, at::kDouble and the model's dtype, ", at::toString(model.dtype()), ", are possible"));
  }
  check_limits(options.plan_limits);
  if (options.loss_scaling) check_loss_scaling(*options.loss_scaling);
  for (const Loss& loss : losses) {
    if (!loss.function)
      refuse(cat("the loss '", loss.name, "' has no function; make one with rp::loss(name, function)"));
  }
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
          .with_sums = options_.rounds_per_step > 1,
          .num_moments = options_.num_moments,
          .master_dtype = dtype_of(options_.optimizer_dtype)};
}

const PipelineRecord& Pipeline::Impl::record() const {
  return runtime_->store_if_created()->catalogue().pipelines()[number_];
}

// Rounds and steps

RoundTraits Pipeline::Impl::traits_of(const Batch& inputs, const CallOptions& options) const {
  RoundTraits traits;
  traits.pipeline = number_;
  traits.num_microbatches = options.num_microbatches.value_or(
      inputs.packed.empty() ? options_.num_microbatches : inputs.packed.front().num_microbatches());
  if (traits.num_microbatches < 1) {
    throw Error(ExitCode::kUsage, cat("num_microbatches is ", traits.num_microbatches, ", but must be at least 1"));
  }
  traits.grain_layer = options.recompute_grain.value_or(runtime_->recompute_grain(options_)) == RecomputeGrain::kLayer;
  traits.random_numbers = options.preserve_random_state.value_or(options_.preserve_random_state);
  return traits;
}

std::optional<Plan> Pipeline::Impl::plan_of(const CallOptions& options) const {
  if (!options.plan || options.plan->empty()) return std::nullopt;
  return parse_plan(*options.plan, model_.num_layers());
}

int Pipeline::Impl::loss_number(const CallOptions& options) const {
  if (losses_.empty()) {
    throw Error(ExitCode::kUsage, "the pipeline has no loss; declare one when it is made");
  }
  if (!options.loss) return 0;
  std::vector<std::string> names;
  for (const Loss& loss : losses_) names.push_back(loss.name);
  const auto found = std::find(names.begin(), names.end(), *options.loss);
  if (found == names.end()) {
    throw Error(ExitCode::kUsage, cat("the pipeline has no loss '", *options.loss, "'",
                                      did_you_mean(*options.loss, names), "; losses are declared when it is made"));
  }
  return static_cast<int>(found - names.begin());
}

void Pipeline::Impl::note_few_microbatches(const RoundTraits& traits) {
  // Rounds that do not wait for each other's step are computed at the same time.
  const bool rounds_overlap = options_.rounds_per_step > 1 || options_.asynchronous;
  const int num_together = traits.num_microbatches * (rounds_overlap ? kRoundsInFlight : 1);
  if (num_together >= session_.num_workers() || !runtime_->mark_few_microbatches_reported()) return;
  std::fprintf(stderr,
               "roundpipe: %d microbatch%s at a time for %d workers: some workers will wait; at least as many "
               "microbatches as workers keep all busy\n",
               num_together, num_together == 1 ? "" : "es", session_.num_workers());
}

std::shared_ptr<Round> Pipeline::Impl::accept(const RoundTraits& traits, const Batch& inputs, const Batch& arguments,
                                              const CallOptions& options) {
  Coordinator& coordinator = this->coordinator();
  if (const int signal = session_.agreed_stop_signal(); signal != 0) throw Interrupted(signal);
  note_few_microbatches(traits);
  const std::optional<Plan> plan = plan_of(options);
  const BatchSplit split(inputs, options.split_inputs.value_or(options_.split_inputs), arguments,
                         options.split_arguments.value_or(options_.split_arguments), traits.num_microbatches);
  if (model_.check()) {
    model_.check()({inputs.tensors, traits.gives_loss() ? losses_[traits.loss].name : "", arguments.tensors});
  }
  return coordinator.accept_round(traits, split.blocks(), plan ? &*plan : nullptr);
}

void Pipeline::Impl::refuse_on_several_nodes(const char* call, const char* why) const {
  const int num_nodes = runtime_->place().num_nodes;
  if (num_nodes > 1)
    throw Error(ExitCode::kUsage, cat("a run on ", num_nodes, " nodes: ", call, " is not possible, because ", why));
}

void Pipeline::Impl::refuse_outputs_on_several_nodes(const char* call) const {
  refuse_on_several_nodes(call,
                          "outputs stay on the node that computes them; call evaluate() or forward_backward() for "
                          "losses, or use one node");
}

void Pipeline::Impl::refuse_masters_on_several_nodes(const char* call) const {
  refuse_on_several_nodes(call,
                          "no node has all master weights; give step() a rule, such as rp::AdamW, or use one node");
}

PackedTensors Pipeline::Impl::outputs_of(std::shared_ptr<Round> round) {
  const BlockRow row{BlockKind::kActivation, model_.num_layers()};
  return PackedTensors(std::make_shared<PackedTensors::State>(runtime_, BlockOfRound{std::move(round), row}));
}

bool Pipeline::Impl::has_corrections() const {
  const Catalogue& catalogue = runtime_->store().catalogue();
  return std::ranges::any_of(catalogue.trained_groups(number_),
                             [&](GroupId group) { return catalogue.weight_groups()[group].is_correction != 0; });
}

FunctionUpdate& Pipeline::Impl::function_update() {
  if (!function_update_) function_update_ = std::make_unique<FunctionUpdate>(runtime_->store(), number_);
  return *function_update_;
}

const std::vector<NamedParameter>& Pipeline::Impl::optimizer_parameters() {
  const Version version = coordinator().pipeline_state(number_).version();
  refuse_masters_on_several_nodes("optimizer_parameters()");
  return function_update().parameters(version);
}

// Reading

std::vector<ParameterState> Pipeline::Impl::parameters(std::uint64_t steps_ago) {
  runtime_->check_has_weights("parameters(), or a model or state that is saved or loaded");
  const PipelineState& state = coordinator().pipeline_state(number_);
  Store& store = runtime_->store();
  const Version version = state.version() - std::min(state.num_steps, steps_ago);
  std::vector<ParameterState> result;
  for (const TensorRecord* tensor : parameter_records()) {
    const UseRecord& use = store.catalogue().uses()[tensor->use];
    const WeightGroupRecord& group = store.catalogue().weight_groups()[use.group];
    ParameterState parameter;
    parameter.layer = record().layer_of(use.layer);
    parameter.parameter = tensor->name.data();
    parameter.name = cat(parameter.layer, ".", parameter.parameter);
    parameter.working = parameter_view(store, *tensor, group.copy_of(version));
    parameter.is_trained = group.is_trained != 0;
    parameter.is_correction = group.is_correction != 0;
    if (parameter.is_trained) {
      parameter.master = master_view(store, *tensor, version);
      parameter.moment1 = moment_view(store, *tensor, group.moment1_offset);
      parameter.moment2 = moment_view(store, *tensor, group.moment2_offset);
    }
    result.push_back(std::move(parameter));
  }
  return result;
}

std::vector<const TensorRecord*> Pipeline::Impl::parameter_records() const {
  const Catalogue& catalogue = runtime_->store().catalogue();
  std::vector<const TensorRecord*> records;
  for (int layer = 0; layer < model_.num_layers(); ++layer) {
    for (const TensorRecord& tensor : catalogue.tensors_of(record().catalogue_layer(layer))) {
      if (is_first_use(catalogue, tensor)) records.push_back(&tensor);
    }
  }
  return records;
}

std::map<std::string, at::Tensor> Pipeline::Impl::masters(const std::function<bool(const ParameterState&)>& wants) {
  std::map<std::string, at::Tensor> result;
  std::optional<MasterGathering> gathering;
  if (runtime_->network() != nullptr) gathering.emplace(*runtime_->network(), number_);
  const Version version = coordinator().pipeline_state(number_).version();
  const std::vector<const TensorRecord*> records = parameter_records();
  const std::vector<ParameterState> all = parameters();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i].is_trained || !wants(all[i])) continue;
    if (all[i].master.defined()) {
      result[all[i].name] = all[i].master;
    } else {
      result[all[i].name] = gathering->add(runtime_->store(), *records[i], version);
    }
  }
  if (gathering) gathering->wait();
  if (runtime_->place().node > 0) result.clear();
  return result;
}

// Reading saved states

std::uint64_t StateTensor::num_elements() const { return static_cast<std::uint64_t>(c10::multiply_integers(shape)); }

std::vector<StateTensor> Pipeline::Impl::state_tensors(const std::vector<BufferState>& buffers) {
  Store& store = runtime_->store();
  const PipelineState& state = coordinator().pipeline_state(number_);
  const Version version = state.version();
  const Version before = version - std::min<std::uint64_t>(state.num_steps, 1);
  std::vector<StateTensor> tensors;
  for (const TensorRecord* record : parameter_records()) {
    const UseRecord& use = store.catalogue().uses()[record->use];
    const WeightGroupRecord& group = store.catalogue().weight_groups()[use.group];
    if (group.is_trained == 0) continue;
    const std::string name = cat(this->record().layer_of(use.layer), ".", record->name.data());
    const auto add = [&](const char* what, const OwnedPart& part) {
      if (!part.value.defined()) return;
      const TensorDesc& desc = record->desc;
      // Another node owns it. If it has no elements at all, the first node writes it.
      if (part.value.numel() == 0 && (desc.bytes() > 0 || store.catalogue().place().node > 0)) return;
      tensors.push_back({.name = name + what,
                         .dtype = dtype_of(part.value.scalar_type()),
                         .shape = {desc.shape.begin(), desc.shape.begin() + desc.rank},
                         .value = part.value,
                         .begin = part.begin,
                         .group = use.group});
    };
    add(".master", owned_master(store, *record, version));
    add(".moment1", owned_moment(store, *record, group.moment1_offset));
    add(".moment2", owned_moment(store, *record, group.moment2_offset));
    if (options_.asynchronous) add(".previous", owned_working(store, *record, before));
  }
  for (const BufferState& buffer : buffers) {
    if (!buffer.value.defined()) continue;
    tensors.push_back({.name = buffer.name + ".buffer",
                       .dtype = dtype_of(buffer.value.scalar_type()),
                       .shape = buffer.value.sizes().vec(),
                       .value = buffer.value.view({-1})});
  }
  return tensors;
}

std::vector<BufferState> Pipeline::Impl::buffers(Coordinator::BuffersOf which) {
  Coordinator& coordinator = this->coordinator();
  std::vector<BufferState> result;
  for (const auto& [layer, kept] : coordinator.buffers(number_, which)) {
    std::uint64_t bytes = 0;
    const std::byte* block = coordinator.block(*kept.round, kept.row, 0, bytes);
    const BlockHead head = read_block_head(block, bytes);
    const Tensors values = tensors_over(head.views(block + head.data_offset));
    const std::vector<std::string>& names = runtime_->buffer_names(number_).at(layer);
    for (std::size_t i = 0; i < values.size(); ++i) {
      result.push_back({.name = cat(layer, ".", names[i]),
                        .layer = layer,
                        .buffer = names[i],
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

void Pipeline::Impl::wait_for_save() {
  if (const auto save = save_.lock()) save->wait_written();
}

void Pipeline::Impl::give_up_save() {
  if (const auto save = save_.lock()) save->give_up();
}

void Pipeline::Impl::stop_save() {
  if (const auto save = save_.lock()) save->stop();
}

MemoryPlan Pipeline::Impl::memory_plan() const {
  const Store* store = runtime_->store_if_created();
  if (store == nullptr) return {};
  return memory_plan_of(*store, runtime_->coordinator_if_started(), number_, runtime_->is_in_files());
}

}  // namespace rp
