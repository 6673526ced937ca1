#include "worker/executor/emulated_stage_executor.h"

#include <algorithm>
#include <utility>

#include "common/system/clock.h"

namespace rp {

namespace {

CopyTimes later(const CopyTimes& a, const CopyTimes& b) { return a.end_ns >= b.end_ns ? a : b; }

// The first layer that a backward stage recomputes before it has its gradient.
int first_recomputed(const Command& command) {
  return command.has(Command::kGrainLayer) ? command.end_layer - 1 : command.first_layer;
}

std::uint64_t max_output_bytes(const std::vector<EmulatedLayer>& layers) {
  std::uint64_t most = 0;
  for (const EmulatedLayer& layer : layers) most = std::max(most, layer.output.bytes());
  return most;
}

}  // namespace

ComputeSpan ComputeClock::run(std::int64_t length_ns, const CopyTimes& needs, std::int64_t now_ns) {
  // A computation that waits for no upload could be launched while the previous one ran, so the
  // host may be late by that computation's length. A computation that waits for an upload is
  // launched when the host knows that the upload will come.
  const bool had_to_wait = needs.end_ns > end_ns_;
  const std::int64_t free_ns = end_ns_;
  const std::int64_t ready_ns = std::max(free_ns, needs.end_ns);
  const std::int64_t start_ns = std::max(ready_ns, had_to_wait ? now_ns : now_ns - length_ns_);
  if (had_to_wait) times_.exposed_ns += needs.end_ns - std::min(needs.end_ns, std::max(free_ns, needs.enqueued_ns));
  times_.dispatch_ns += start_ns - ready_ns;
  times_.busy_ns += length_ns;
  end_ns_ = start_ns + length_ns;
  length_ns_ = length_ns;
  return {.free_ns = free_ns, .start_ns = start_ns, .end_ns = end_ns_};
}

ComputeTimes ComputeClock::take_times() { return std::exchange(times_, {}); }

EmulatedStageExecutor::EmulatedStageExecutor(std::vector<EmulatedLayer> layers, EmulatedDevice& device,
                                             const Catalogue& catalogue, Observer observer)
    : layers_(std::move(layers)),
      device_(device),
      catalogue_(catalogue),
      observer_(std::move(observer)),
      outputs_(device.allocate(max_output_bytes(layers_), MemoryUse::kOutputs)) {
  RP_ASSERT(layers_.size() == static_cast<std::size_t>(catalogue.num_layers()));
}

void EmulatedStageExecutor::begin(const StageTask& task) {
  if (!std::exchange(is_on_time_, true)) wake_this_thread_on_time();
  task_needs_ = {.enqueued_ns = task.weights_known_ns, .end_ns = task.weights_enqueued_ns};
  CopyTimes gradients;
  for (const UseMemory& memory : task.uses) {
    const std::uint64_t bytes = catalogue_.weight_groups()[catalogue_.uses()[memory.use].group].bytes();
    task_needs_.end_ns = std::max(task_needs_.end_ns, device_.last_copy(memory.weights, bytes).end_ns);
    if (memory.gradient != nullptr) gradients = later(gradients, device_.last_copy(memory.gradient, bytes));
  }
  task_needs_ = later(task_needs_, gradients);
  expansion_ns_ = 0;
  for (int i = task.command->first_layer; i < task.command->end_layer; ++i)
    expansion_ns_ += layer(*task.command, i).expansion_ns;
}

CopyTimes EmulatedStageExecutor::with_block(const CopyTimes& needs, const InputBlock& block) {
  CopyTimes latest = needs;
  for (const TensorView& tensor : block.tensors) {
    if (!tensor.desc.is_absent()) latest = later(latest, device_.last_copy(tensor.data, tensor.desc.bytes()));
  }
  return latest;
}

CopyTimes EmulatedStageExecutor::with_inputs(const CopyTimes& needs, const MicrobatchInputs& inputs) {
  CopyTimes latest = needs;
  for (const InputBlock& block : inputs.blocks) latest = with_block(latest, block);
  return latest;
}

void EmulatedStageExecutor::compute(const StageTask& task, int microbatch, bool is_recompute, std::int64_t length_ns,
                                    const CopyTimes& needs) {
  const ComputeSpan span = clock_.run(length_ns + std::exchange(expansion_ns_, 0), needs, now_ns());
  if (observer_) observer_(task, microbatch, is_recompute, span);
}

void EmulatedStageExecutor::recompute(const StageTask& task, int microbatch, const MicrobatchInputs& inputs) {
  const Command& command = *task.command;
  std::int64_t length_ns = 0;
  for (int i = first_recomputed(command); i < command.end_layer; ++i) length_ns += layer(command, i).forward_ns;
  const CopyTimes known{.enqueued_ns = inputs.others_known_ns, .end_ns = inputs.others_known_ns};
  // The gradient may still be on its way.
  compute(task, microbatch, true, length_ns, with_inputs(later(task_needs_, known), inputs));
}

void EmulatedStageExecutor::run(const StageTask& task, int microbatch, const MicrobatchInputs& inputs,
                                MicrobatchOutputs& outputs) {
  const Command& command = *task.command;
  const bool goes_back = command.phase != Phase::kForward;
  std::int64_t length_ns = 0;
  for (int i = command.first_layer; i < command.end_layer; ++i) {
    // With the grain of a layer, a backward stage recomputes each other layer when it comes to it.
    if (command.phase != Phase::kBackward || i < first_recomputed(command)) length_ns += layer(command, i).forward_ns;
    if (goes_back) length_ns += layer(command, i).backward_ns;
  }
  CopyTimes needs = later(task_needs_, {.enqueued_ns = inputs.known_ns, .end_ns = inputs.known_ns});
  if (command.phase == Phase::kBackward) {
    if (inputs.gradient) needs = with_block(needs, *inputs.gradient);
  } else {
    needs = with_inputs(needs, inputs);
  }
  compute(task, microbatch, false, length_ns, needs);
  sleep_exactly_until_ns(clock_.end_ns());
  if (command.phase != Phase::kBackward) {
    for (int boundary = command.first_layer + 1; boundary <= command.end_layer; ++boundary) {
      if (command.saves(boundary)) add_output(outputs, command, BlockKind::kActivation, boundary);
    }
  }
  if (goes_back && command.wants_input_gradient())
    add_output(outputs, command, BlockKind::kGradient, command.first_layer);
  if (command.runs_loss()) outputs.losses = {.num = 1, .values = {}};
}

void EmulatedStageExecutor::add_output(MicrobatchOutputs& outputs, const Command& command, BlockKind kind,
                                       int boundary) const {
  OutputBlock block{.kind = kind, .index = boundary, .tensors = {}, .owner = {}};
  // No layer describes the model's inputs, so their gradient has no tensors.
  if (boundary > 0) block.tensors.push_back({.desc = layer(command, boundary - 1).output, .data = outputs_.data()});
  outputs.blocks.push_back(std::move(block));
}

void EmulatedStageExecutor::end(const StageTask& task, TaskTotals& totals) {
  const Command& command = *task.command;
  totals.square_sums.assign(task.uses.size(), 0);
  totals.layer_times.clear();
  for (int i = command.first_layer; i < command.end_layer; ++i) {
    const EmulatedLayer& times = layer(command, i);
    const std::int64_t forward_ns = times.forward_ns * command.num_microbatches;
    const std::int64_t backward_ns = times.backward_ns * command.num_microbatches;
    const bool is_backward = command.phase == Phase::kBackward;
    totals.layer_times.push_back({.forward_ns = is_backward ? 0 : forward_ns,
                                  .recompute_ns = is_backward ? forward_ns : 0,
                                  .backward_ns = command.phase == Phase::kForward ? 0 : backward_ns});
  }
  totals.compute = clock_.take_times();
}

}  // namespace rp
