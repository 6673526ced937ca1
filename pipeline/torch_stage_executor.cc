#include "pipeline/torch_stage_executor.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "common/clock.h"
#include "common/random_seed.h"
#include "coordinator/float_format.h"
#include "optimizer/adamw.h"
#include "pipeline/description.h"
#include "pipeline/tensors.h"

namespace rp {

namespace {

// Adds the time until its end to a counter.
class Stopwatch {
 public:
  explicit Stopwatch(std::int64_t& total) : total_(total), start_(now_ns()) {}
  ~Stopwatch() { total_ += now_ns() - start_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  std::int64_t& total_;
  std::int64_t start_;
};

// Runs a piece of the user's code: whatever it throws becomes a failure of `layer` (or of the loss), in one line.
template <typename Code>
auto run_user_code(std::int64_t layer, Code&& code) {
  try {
    return code();
  } catch (const LayerFailure&) {
    throw;
  } catch (const c10::Error& error) {
    throw LayerFailure(layer, error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw LayerFailure(layer, error.what());
  } catch (...) {
    throw LayerFailure(layer, "an exception of unknown type");
  }
}

// True for tensors over memory that the worker reuses: they must be copied before they outlive the microbatch.
bool borrows_memory(const at::Tensor& tensor) { return tensor.storage().allocator() == nullptr; }

// A block's tensors, kept alive until they are copied to the store. `layer` made them.
OutputBlock output_block(BlockKind kind, int boundary, const Tensors& tensors, int layer) {
  auto owner = std::make_shared<Tensors>();
  for (const at::Tensor& tensor : tensors) {
    owner->push_back(tensor.defined() && borrows_memory(tensor) ? tensor.detach().clone() : tensor);
  }
  std::vector<TensorView> views = run_user_code(layer, [&] { return views_of(*owner); });  // throws for what cannot travel
  return {.kind = kind, .boundary = boundary, .tensors = std::move(views), .owner = std::move(owner)};
}

bool needs_gradient(const at::Tensor& tensor) { return tensor.defined() && at::isFloatingType(tensor.scalar_type()); }

}  // namespace

TorchStageExecutor::TorchStageExecutor(const Model& model, const Loss& loss, const Catalogue& catalogue, int num_threads,
                                       std::uint64_t seed, LayerReport report)
    : model_(model),
      loss_(loss),
      catalogue_(catalogue),
      num_threads_(num_threads),
      seed_(seed),
      report_(std::move(report)),
      generator_(at::detail::getDefaultCPUGenerator()),
      layers_(static_cast<std::size_t>(model.num_layers())),
      team_(num_threads) {
  std::size_t most = 0;
  for (const BlockRecord& block : catalogue.blocks()) most = std::max(most, num_partial_sums(block.num_elements));
  partial_sums_.resize(most);
}

TorchStageExecutor::BuiltLayer& TorchStageExecutor::built(int layer) {
  BuiltLayer& place = layers_[static_cast<std::size_t>(layer)];
  if (!place.layer) {
    run_user_code(layer, [&] {
      place.layer = model_.layers()[static_cast<std::size_t>(layer)].make();
      place.parameters = place.layer->parameters();
    });
    compare_parameters(place.parameters, catalogue_, layer);
  }
  return place;
}

LayerTime& TorchStageExecutor::time_of(const Command& command, int layer) {
  return times_[static_cast<std::size_t>(layer - command.first_layer)];
}

void TorchStageExecutor::begin(const StageTask& task) {
  if (!threads_set_) {
    at::set_num_threads(num_threads_);  // of this thread, which computes
    threads_set_ = true;
  }
  const Command& command = *task.command;
  times_.assign(static_cast<std::size_t>(command.end_layer - command.first_layer), {});
  for (const UseMemory& memory : task.uses) {
    if (memory.accumulator == nullptr) continue;
    const BlockRecord& block = catalogue_.blocks()[catalogue_.uses()[memory.use].block];
    std::memset(memory.accumulator, 0, block.num_elements * sizeof(float));
  }
  for (int layer = command.first_layer; layer < command.end_layer; ++layer) bind_layer(task, layer);
}

void TorchStageExecutor::bind_layer(const StageTask& task, int layer) {
  BuiltLayer& place = built(layer);
  const auto tensors = catalogue_.tensors_of(layer);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto memory = std::find_if(task.uses.begin(), task.uses.end(),
                                     [&](const UseMemory& use) { return use.use == tensors[i].use; });
    const TensorDesc& desc = tensors[i].desc;
    const at::IntArrayRef shape(desc.shape.data(), static_cast<std::size_t>(desc.rank));
    at::Tensor& parameter = place.parameters[i].value;
    parameter.set_data(tensor_over(memory->weights + tensors[i].element_offset * dtype_bytes(desc.dtype), shape,
                                   scalar_type_of(desc.dtype)));
    parameter.set_grad_dtype(at::kFloat);
    parameter.mutable_grad() =
        memory->accumulator == nullptr
            ? at::Tensor()
            : tensor_over(reinterpret_cast<const std::byte*>(memory->accumulator + tensors[i].element_offset), shape,
                          at::kFloat);
  }
}

Tensors TorchStageExecutor::run_layer(const Command& command, int layer, const Tensors& inputs) {
  if (report_) report_(layer, microbatch_);
  Layer& built_layer = *built(layer).layer;
  {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_current_seed(random_seed(seed_, command.round, static_cast<std::uint64_t>(layer),
                                            static_cast<std::uint64_t>(microbatch_)));
  }
  return run_user_code(layer, [&] {
    Tensors outputs = built_layer.forward(inputs);
    // Dense in memory, as they are after a transport to another stage.
    for (at::Tensor& output : outputs) {
      if (output.defined()) output = output.contiguous();
    }
    return outputs;
  });
}

void TorchStageExecutor::run(const StageTask& task, int microbatch, const MicrobatchInputs& inputs,
                             MicrobatchOutputs& outputs) {
  const Command& command = *task.command;
  microbatch_ = microbatch;
  Tensors activation = tensors_over(inputs.activation);
  if (command.phase == Phase::kForward) {
    run_forward(command, std::move(activation), outputs);
    return;
  }
  std::vector<Graph> graphs = run_forward_with_graphs(command, std::move(activation));
  Tensors gradients;
  const bool is_fused = command.phase == Phase::kFused;
  if (is_fused) {
    Stopwatch watch(time_of(command, command.end_layer - 1).backward_ns);
    outputs.loss = run_loss(graphs.back(), tensors_over(inputs.arguments));
  } else {
    gradients = tensors_over(inputs.gradient);
  }
  gradients = run_backward(command, std::move(graphs), std::move(gradients), is_fused);
  if (command.first_layer > 0) {
    outputs.blocks.push_back(output_block(BlockKind::kGradient, command.first_layer, gradients, command.first_layer));
  }
}

void TorchStageExecutor::run_forward(const Command& command, Tensors activation, MicrobatchOutputs& outputs) {
  const c10::NoGradGuard no_grad;
  for (int layer = command.first_layer; layer < command.end_layer; ++layer) {
    Stopwatch watch(time_of(command, layer).forward_ns);
    activation = run_layer(command, layer, activation);
    if (command.saves(layer + 1)) {
      outputs.blocks.push_back(output_block(BlockKind::kActivation, layer + 1, activation, layer));
    }
  }
}

std::vector<TorchStageExecutor::Graph> TorchStageExecutor::run_forward_with_graphs(const Command& command,
                                                                                  Tensors activation) {
  const c10::AutoGradMode with_grad(true);
  std::vector<Graph> graphs;
  for (int layer = command.first_layer; layer < command.end_layer; ++layer) {
    Stopwatch watch(time_of(command, layer).forward_ns);
    Graph graph;
    for (const at::Tensor& tensor : activation) {
      at::Tensor input = tensor.defined() ? tensor.detach() : tensor;
      // Nobody asks for the gradient of the model's own input.
      if (layer > 0 && needs_gradient(input)) input.requires_grad_(true);
      graph.inputs.push_back(std::move(input));
    }
    graph.outputs = run_layer(command, layer, graph.inputs);
    activation = graph.outputs;
    graphs.push_back(std::move(graph));
  }
  return graphs;
}

// The loss belongs to the last layer's graph: its backward runs through both.
double TorchStageExecutor::run_loss(const Graph& last, const Tensors& arguments) {
  const c10::AutoGradMode with_grad(true);
  return run_user_code(FailureRecord::kLoss, [&] {
    const at::Tensor loss = loss_.function(last.outputs, arguments);
    if (!loss.defined() || loss.numel() != 1) {
      throw std::runtime_error("the loss function must return one number, a tensor with one element");
    }
    if (loss.requires_grad()) torch::autograd::backward({loss});
    return loss.item<double>();
  });
}

Tensors TorchStageExecutor::run_backward(const Command& command, std::vector<Graph> graphs, Tensors gradients,
                                         bool last_is_done) {
  for (int layer = command.end_layer; layer-- > command.first_layer;) {
    Stopwatch watch(time_of(command, layer).backward_ns);
    Graph graph = std::move(graphs.back());
    graphs.pop_back();
    if (report_) report_(layer, microbatch_);
    if (!(last_is_done && layer == command.end_layer - 1)) {
      std::vector<at::Tensor> roots;
      std::vector<at::Tensor> root_gradients;
      for (std::size_t i = 0; i < graph.outputs.size() && i < gradients.size(); ++i) {
        if (!gradients[i].defined() || !graph.outputs[i].defined() || !graph.outputs[i].requires_grad()) continue;
        roots.push_back(graph.outputs[i]);
        root_gradients.push_back(gradients[i]);
      }
      if (!roots.empty()) run_user_code(layer, [&] { torch::autograd::backward(roots, root_gradients); });
    }
    gradients.clear();
    for (const at::Tensor& input : graph.inputs) {
      at::Tensor gradient = input.defined() ? input.grad() : input;
      gradients.push_back(gradient.defined() ? gradient.contiguous() : at::Tensor());
    }
  }
  return gradients;
}

void TorchStageExecutor::end(const StageTask& task, TaskTotals& totals) {
  const c10::NoGradGuard no_grad;
  totals.layer_times = times_;
  totals.square_sums.clear();
  for (const UseMemory& memory : task.uses) {
    if (memory.accumulator == nullptr) continue;
    const BlockRecord& block = catalogue_.blocks()[catalogue_.uses()[memory.use].block];
    const auto count = static_cast<std::int64_t>(block.num_elements);
    at::Tensor gradient = tensor_over(memory.gradient, {count}, scalar_type_of(block.dtype));
    gradient.copy_(tensor_over(reinterpret_cast<const std::byte*>(memory.accumulator), {count}, at::kFloat));
    const void* pointer = memory.gradient;
    totals.square_sums.push_back(sum_of_squares(
        {.uses = &pointer, .num_uses = 1, .format = float_format_of(block.dtype), .num_elements = block.num_elements},
        partial_sums_, team_));
  }
}

}  // namespace rp
