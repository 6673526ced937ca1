#include "pipeline/torch_worker/torch_stage_executor.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <iterator>
#include <mutex>

#include "common/random_seed.h"
#include "pipeline/description/tensors.h"
#include "pipeline/description/value_structure.h"
#include "pipeline/torch_worker/stopwatch.h"
#include "pipeline/torch_worker/user_code.h"
#include "pipeline/torch_worker/warm_up.h"

namespace rp {

namespace {

// True for tensors over memory that the worker reuses: they must be copied before they outlive the microbatch.
bool borrows_memory(const at::Tensor& tensor) { return tensor.storage().allocator() == nullptr; }

bool can_have_gradient(const at::Tensor& tensor) {
  return tensor.defined() && at::isFloatingType(tensor.scalar_type());
}

// Returns whether the gradient at a boundary is needed.
bool wants_gradient_at(const Command& command, int boundary) {
  return boundary > command.first_trained_layer || (boundary == 0 && command.has(Command::kInputGradient));
}

void multiply(Tensors& tensors, double factor) {
  if (factor == 1) return;
  const c10::NoGradGuard no_grad;
  for (at::Tensor& tensor : tensors) {
    if (tensor.defined()) tensor = tensor * factor;
  }
}

// Returns the gradients with which the backward of the losses begins.
Tensors scaled_ones(const Tensors& losses, double scale) {
  Tensors ones;
  for (const at::Tensor& loss : losses) ones.push_back(at::full_like(loss, scale));
  return ones;
}

std::vector<std::int64_t> versions_of(const Tensors& tensors) {
  std::vector<std::int64_t> versions;
  for (const at::Tensor& tensor : tensors) versions.push_back(tensor.defined() ? tensor._version() : -1);
  return versions;
}

}  // namespace

TorchStageExecutor::TorchStageExecutor(std::vector<PipelineCode> pipelines, const Catalogue& catalogue,
                                       TorchDevice& device, Options options, LayerReport report)
    : pipelines_(std::move(pipelines)),
      catalogue_(catalogue),
      device_(device),
      options_(options),
      report_(std::move(report)),
      generator_(device.generator()),
      layers_(pipelines_, catalogue, device),
      meter_(device),
      results_(device) {}

LayerTime& TorchStageExecutor::time_of(const Command& command, int layer) {
  return results_.time(place_of(command, layer));
}

// Returns a block that keeps its tensors alive until they are copied to the store. `layer` made the
// tensors.
OutputBlock TorchStageExecutor::output_block(BlockKind kind, int index, const Tensors& tensors, int layer) const {
  auto owner = std::make_shared<Tensors>();
  for (const at::Tensor& tensor : tensors) {
    owner->push_back(tensor.defined() && borrows_memory(tensor) ? tensor.detach().clone() : tensor);
  }
  // Throws if a tensor cannot be stored in a block.
  std::vector<TensorView> views = run_user_code(layer, [&] { return views_of(*owner, device_.device()); });
  for (const at::Tensor& tensor : *owner) device_.note_output(tensor);
  return {.kind = kind, .index = index, .tensors = std::move(views), .owner = std::move(owner)};
}

void TorchStageExecutor::enter_thread() {
  if (!std::exchange(has_entered_, true)) device_.enter_thread(options_.num_threads);
}

bool TorchStageExecutor::warm_up(Device& device) {
  if (!options_.warms_up) return false;
  enter_thread();
  return WarmUp(*this, pipelines_, catalogue_, device_, device).run();
}

void TorchStageExecutor::begin_epoch() {
  has_entered_ = false;
  recomputed_.clear();
  layers_.end_tasks();
}

void TorchStageExecutor::clear(std::span<const UseMemory> uses) {
  enter_thread();
  for (const UseMemory& memory : uses) {
    if (memory.accumulator == nullptr) continue;
    const WeightGroupRecord& group = catalogue_.weight_groups()[catalogue_.uses()[memory.use].group];
    device_.clear(memory.accumulator, group.num_elements * sizeof(float));
  }
}

void TorchStageExecutor::begin(const StageTask& task) {
  enter_thread();
  const Command& command = *task.command;
  results_.begin(static_cast<std::size_t>(command.num_microbatches), task.uses.size(),
                 static_cast<std::size_t>(command.end_layer - command.first_layer));
  recomputed_.clear();
  layers_.end_tasks();
  meter_.begin(command.end_layer - command.first_layer);
  layers_.bind(task);
  for (int layer = command.first_layer; layer < command.end_layer; ++layer) {
    LayerTime& time = time_of(command, layer);
    const Stopwatch watch(device_, command.phase == Phase::kBackward ? time.recompute_ns : time.forward_ns);
    meter_.start();
    layers_.begin_task(command, layer);
    meter_.end_beginning(place_of(command, layer));
  }
}

void TorchStageExecutor::give_buffers(const Run& run) {
  for (int layer = run.command.first_layer; layer < run.command.end_layer; ++layer) {
    const Tensors values = layers_.buffers(run.command, layer);
    if (!values.empty()) run.outputs.blocks.push_back(output_block(BlockKind::kBuffers, layer, values, layer));
  }
}

// Layers

void TorchStageExecutor::set_random_seed(const Run& run, int layer) {
  if (run.command.has(Command::kNoRandomNumbers)) return;
  const std::lock_guard<std::mutex> lock(generator_.mutex());
  generator_.set_current_seed(random_seed(catalogue_.pipelines()[run.command.pipeline].seed, run.command.round,
                                          static_cast<std::uint64_t>(layer),
                                          static_cast<std::uint64_t>(run.microbatch)));
}

Tensors TorchStageExecutor::run_layer(const Run& run, int layer, const Tensors& inputs, bool outputs_are_read) {
  const Command& command = run.command;
  if (report_) report_(layer, run.microbatch, inputs);
  Layer& called = layers_.layer(command, layer);
  set_random_seed(run, layer);
  RecomputeContext context;
  context.keeps = command.phase == Phase::kForward && command.has(Command::kSavesForRecompute) &&
                  layer >= command.first_trained_layer;
  context.is_recompute = command.phase == Phase::kBackward;
  context.outputs_are_read = outputs_are_read;
  Tensors data;
  if (const InputBlock* block = context.is_recompute ? run.inputs.find(BlockKind::kRecompute, layer) : nullptr) {
    data = tensors_over(block->tensors, device_.device());
    context.data = &data;
  }
  Tensors outputs = run_user_code(layer, [&] {
    const RecomputeScope scope(context);
    const std::vector<std::int64_t> versions = versions_of(inputs);
    Tensors results = called.forward(inputs);
    if (versions_of(inputs) != versions) {
      throw std::runtime_error("its forward() changes an input in place; other layers or a recompute still read it");
    }
    // The outputs are dense, as they would be after a transfer to another stage.
    for (at::Tensor& result : results) {
      if (result.defined()) result = result.contiguous();
    }
    return results;
  });
  if (!context.saved.empty())
    run.outputs.blocks.push_back(output_block(BlockKind::kRecompute, layer, context.saved, layer));
  return outputs;
}

// Returns the tensors of a block, followed by those of blocks that other rounds made.
Tensors TorchStageExecutor::with_imports(const Run& run, BlockKind kind, int index, BlockKind import,
                                         int num_imports) const {
  Tensors tensors = tensors_over(run.inputs.tensors(kind, index), device_.device());
  for (int i = 0; i < num_imports; ++i) {
    const Tensors imported = tensors_over(run.inputs.tensors(import, i), device_.device());
    tensors.insert(tensors.end(), imported.begin(), imported.end());
  }
  return tensors;
}

Tensors TorchStageExecutor::activation_at(const Run& run, int boundary) const {
  return with_imports(run, BlockKind::kActivation, boundary, BlockKind::kInputImport,
                      boundary == 0 ? run.command.num_input_imports : 0);
}

// Runs the layers from the stage's first to `end_layer` without graphs, and returns the activation
// after the last.
Tensors TorchStageExecutor::forward(const Run& run, int end_layer) {
  const c10::NoGradGuard no_grad;
  Tensors activation = activation_at(run, run.command.first_layer);
  for (int layer = run.command.first_layer; layer < end_layer; ++layer) {
    Stopwatch watch(device_, time_of(run.command, layer).forward_ns);
    meter_.start();
    Tensors outputs = run_layer(run, layer, activation, /*outputs_are_read=*/true);
    meter_.end_forward(place_of(run.command, layer), activation, outputs);
    activation = std::move(outputs);
    if (run.command.saves(layer + 1)) {
      run.outputs.blocks.push_back(output_block(BlockKind::kActivation, layer + 1, activation, layer));
    }
  }
  return activation;
}

TorchStageExecutor::Graph TorchStageExecutor::forward_with_graph(const Run& run, int layer, const Tensors& activation,
                                                                 bool outputs_are_read) {
  const c10::AutoGradMode with_grad(true);
  LayerTime& time = time_of(run.command, layer);
  Stopwatch watch(device_, run.command.phase == Phase::kBackward ? time.recompute_ns : time.forward_ns);
  Graph graph;
  for (const at::Tensor& tensor : activation) {
    at::Tensor input = tensor.defined() ? tensor.detach() : tensor;
    if (wants_gradient_at(run.command, layer) && can_have_gradient(input)) input.requires_grad_(true);
    graph.inputs.push_back(std::move(input));
  }
  meter_.start();
  graph.outputs = run_layer(run, layer, graph.inputs, outputs_are_read);
  meter_.end_graph(place_of(run.command, layer), graph.inputs, graph.outputs);
  return graph;
}

Tensors TorchStageExecutor::backward(const Run& run, int layer, const Graph& graph, const Tensors& gradients,
                                     bool is_done) {
  Stopwatch watch(device_, time_of(run.command, layer).backward_ns);
  if (report_) report_(layer, run.microbatch, graph.inputs);
  meter_.start();
  if (!is_done) {
    std::vector<at::Tensor> roots;
    std::vector<at::Tensor> root_gradients;
    for (std::size_t i = 0; i < graph.outputs.size() && i < gradients.size(); ++i) {
      if (!gradients[i].defined() || !graph.outputs[i].defined() || !graph.outputs[i].requires_grad()) continue;
      roots.push_back(graph.outputs[i]);
      root_gradients.push_back(gradients[i]);
    }
    if (!roots.empty()) run_user_code(layer, [&] { torch::autograd::backward(roots, root_gradients); });
  }
  Tensors result;
  for (const at::Tensor& input : graph.inputs) {
    const at::Tensor gradient = input.defined() ? input.grad() : input;
    result.push_back(gradient.defined() ? gradient.contiguous() : at::Tensor());
  }
  meter_.end_backward(place_of(run.command, layer), gradients);
  return result;
}

// Stages

void TorchStageExecutor::run(const StageTask& task, int microbatch, const MicrobatchInputs& inputs,
                             MicrobatchOutputs& outputs) {
  const Command& command = *task.command;
  const Run run{command, microbatch, inputs, outputs, task.loss_scale};
  const Span span(device_, results_.span(static_cast<std::size_t>(microbatch), false));
  if (microbatch == 0 && command.phase != Phase::kBackward) layers_.take_buffers(command, inputs);
  switch (command.phase) {
    case Phase::kForward: {
      const Tensors outputs = forward(run, command.end_layer);
      if (command.runs_loss()) evaluate_loss(run, outputs);
      break;
    }
    case Phase::kFused: run_fused(run); break;
    case Phase::kBackward: return run_backward(run);
  }
  if (command.round_mode == RoundMode::kTrain && microbatch == command.num_microbatches - 1) give_buffers(run);
}

void TorchStageExecutor::run_fused(const Run& run) {
  const Command& command = run.command;
  // Frozen layers at the bottom need no graph.
  const int first = std::min(std::max(command.first_layer, command.first_trained_layer), command.end_layer);
  Tensors activation = forward(run, first);
  std::vector<Graph> graphs;
  for (int layer = first; layer < command.end_layer; ++layer) {
    graphs.push_back(forward_with_graph(run, layer, activation, /*outputs_are_read=*/true));
    activation = graphs.back().outputs;
  }
  if (command.saves(command.end_layer) && first < command.end_layer) {
    run.outputs.blocks.push_back(
        output_block(BlockKind::kActivation, command.end_layer, activation, command.end_layer - 1));
  }
  run_loss(run, activation);
  bool is_done = true;  // the loss's backward includes that of the last layer
  Tensors gradients;
  for (int layer = command.end_layer; layer-- > first;) {
    gradients = backward(run, layer, graphs.back(), gradients, is_done);
    graphs.pop_back();
    is_done = false;
  }
  give_input_gradient(run, gradients);
}

void TorchStageExecutor::give_input_gradient(const Run& run, Tensors gradients) const {
  const int layer = run.command.first_layer;
  if (!run.command.wants_input_gradient()) return;
  if (layer == 0) multiply(gradients, 1 / run.loss_scale);
  run.outputs.blocks.push_back(output_block(BlockKind::kGradient, layer, gradients, layer));
}

int TorchStageExecutor::num_layers_of(const Command& command) const {
  return pipelines_[command.pipeline].model->num_layers();
}

void TorchStageExecutor::recompute(const StageTask& task, int microbatch, const MicrobatchInputs& inputs) {
  const Command& command = *task.command;
  MicrobatchOutputs none;
  const Run run{command, microbatch, inputs, none, task.loss_scale};
  const Span span(device_, results_.span(static_cast<std::size_t>(microbatch), true));
  if (microbatch == 0) layers_.take_buffers(command, inputs);
  const int first = command.has(Command::kGrainLayer) ? command.end_layer - 1 : command.first_layer;
  Tensors activation = activation_at(run, first);
  for (int layer = first; layer < command.end_layer; ++layer) {
    recomputed_.push_back(
        forward_with_graph(run, layer, activation, /*outputs_are_read=*/layer + 1 < command.end_layer));
    activation = recomputed_.back().outputs;
  }
}

void TorchStageExecutor::run_backward(const Run& run) {
  const Command& command = run.command;
  Tensors gradients = tensors_over(run.inputs.tensors(BlockKind::kGradient, command.end_layer), device_.device());
  // Gradients outside of the pipeline are not scaled.
  if (command.end_layer == num_layers_of(command)) multiply(gradients, run.loss_scale);
  for (int layer = command.end_layer; layer-- > command.first_layer;) {
    if (recomputed_.empty())
      recomputed_.push_back(forward_with_graph(run, layer, activation_at(run, layer), /*outputs_are_read=*/false));
    gradients = backward(run, layer, recomputed_.back(), gradients, false);
    recomputed_.pop_back();
  }
  give_input_gradient(run, gradients);
}

Tensors TorchStageExecutor::call_loss(const Run& run, const Tensors& outputs) const {
  const Loss& loss = (*pipelines_[run.command.pipeline].losses)[run.command.loss];
  const Tensors tensors =
      with_imports(run, BlockKind::kArguments, 0, BlockKind::kArgumentImport, run.command.num_argument_imports);
  Tensors values = loss.function(outputs, value_of(run.inputs.find(BlockKind::kArguments, 0)->structure, tensors));
  const std::size_t max_values = run.outputs.losses.values.size();
  if (values.empty() || values.size() > max_values) {
    throw std::runtime_error("the loss function must return one number, or a list of at most " +
                             std::to_string(max_values));
  }
  for (const at::Tensor& value : values) {
    if (!value.defined() || value.numel() != 1) {
      throw std::runtime_error("the loss function must return one number, a tensor with one element");
    }
  }
  return values;
}

void TorchStageExecutor::record_losses(const Run& run, const Tensors& values) {
  const c10::NoGradGuard no_grad;
  LossRecord& record = run.outputs.losses;
  for (const at::Tensor& value : values) {
    double* const place = results_.loss(static_cast<std::size_t>(run.microbatch), record.num++);
    tensor_over(reinterpret_cast<const std::byte*>(place), {1}, at::kDouble, device_.device())
        .copy_(value.reshape({1}));
  }
}

// The loss is part of the last layer's graph, so its backward runs through both.
void TorchStageExecutor::run_loss(const Run& run, const Tensors& outputs) {
  const c10::AutoGradMode with_grad(true);
  Stopwatch watch(device_, time_of(run.command, run.command.end_layer - 1).backward_ns);
  meter_.start();
  run_user_code(FailureRecord::kLoss, [&] {
    const Tensors values = call_loss(run, outputs);
    Tensors roots;
    std::copy_if(values.begin(), values.end(), std::back_inserter(roots),
                 [](const at::Tensor& value) { return value.requires_grad(); });
    if (!roots.empty()) torch::autograd::backward(roots, scaled_ones(roots, run.loss_scale));
    record_losses(run, values);
  });
  meter_.end_backward(place_of(run.command, run.command.end_layer - 1), {});
}

// Not timed, because plans are based on the layer times of training.
void TorchStageExecutor::evaluate_loss(const Run& run, const Tensors& outputs) {
  const c10::NoGradGuard no_grad;
  meter_.start();
  run_user_code(FailureRecord::kLoss, [&] { record_losses(run, call_loss(run, outputs)); });
  meter_.end_evaluated_loss(place_of(run.command, run.command.end_layer - 1), outputs);
}

void TorchStageExecutor::end(const StageTask& task, TaskTotals& totals) {
  for (std::size_t i = 0; i < task.uses.size(); ++i) {
    const UseMemory& memory = task.uses[i];
    if (memory.accumulator == nullptr) continue;
    const WeightGroupRecord& group = catalogue_.weight_groups()[catalogue_.uses()[memory.use].group];
    device_.round_gradient({.accumulator = memory.accumulator,
                            .gradient = memory.gradient,
                            .dtype = group.dtype,
                            .num_elements = group.num_elements,
                            .square_sum = results_.square_sum(i)});
  }
  layers_.end_tasks();
  totals.layer_memory = meter_.layers();
  totals.resident_bytes = meter_.resident_bytes();
  totals.results = results_.end();
}

}  // namespace rp
