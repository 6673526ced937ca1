#include "pipeline/torch_worker/warm_up.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "common/text.h"
#include "pipeline/description/tensors.h"
#include "roundpipe/error.h"
#include "worker/stage_memory.h"

namespace rp {

namespace {

// Removes the number: "DecoderLayer 7" is a DecoderLayer.
std::string without_number(const std::string& name) {
  const std::size_t space = name.rfind(' ');
  const bool has_number =
      space != std::string::npos && name.find_first_not_of("0123456789", space + 1) == std::string::npos;
  return has_number ? name.substr(0, space) : name;
}

std::string shape_text(const TensorDesc& desc) {
  std::string text = cat(" ", static_cast<int>(desc.dtype));
  for (int i = 0; i < desc.rank; ++i) text += cat(":", desc.shape[i]);
  return text;
}

// Gradients of the outputs, as a later stage would send them.
Tensors zero_gradients(const Tensors& outputs) {
  Tensors gradients;
  for (const at::Tensor& output : outputs) {
    const bool has_gradient = output.defined() && at::isFloatingType(output.scalar_type());
    gradients.push_back(has_gradient ? at::zeros_like(output) : at::Tensor());
  }
  return gradients;
}

InputBlock input_block(BlockKind kind, int index, std::vector<TensorView> tensors) {
  return {.kind = kind, .index = index, .tensors = std::move(tensors), .structure = {}};
}

}  // namespace

bool WarmUp::run() {
  bool has_run = false;
  for (int pipeline = 0; pipeline < static_cast<int>(pipelines_.size()); ++pipeline) {
    if (example(pipeline).inputs.empty()) continue;
    has_run = true;
    try {
      run_pipeline(pipeline);
    } catch (const LayerFailure& failure) {
      const std::string where = failure.layer() < 0 ? std::string("the loss") : cat("layer ", failure.layer());
      throw Error(failure.code(),
                  cat(where, " does not run on the model's example, before the first task: ", failure.what(),
                      "; correct what Model::set_example() is given, or leave the warm-up out with --warm-up 0"));
    }
  }
  return has_run;
}

void WarmUp::run_pipeline(int pipeline) {
  const c10::NoGradGuard no_grad;
  Tensors activation;
  for (const at::Tensor& input : example(pipeline).inputs) {
    activation.push_back(input.defined() ? input.to(torch_device_.device()) : input);
  }
  outputs_of_kind_.clear();
  const int num_layers = pipelines_[pipeline].model->num_layers();
  for (int layer = 0; layer < num_layers; ++layer) {
    const Place place{pipeline, layer};
    const auto [known, is_new] = outputs_of_kind_.try_emplace(kind_of(place, activation));
    if (is_new) known->second = run_layer(place, activation);
    activation = known->second;
  }
}

Tensors WarmUp::run_layer(const Place& place, Tensors inputs) {
  const c10::Device device = torch_device_.device();
  MicrobatchInputs given;
  given.blocks.push_back(input_block(BlockKind::kActivation, place.layer, views_of(inputs, device)));
  const bool is_last = place.layer + 1 == pipelines_[place.pipeline].model->num_layers();
  if (is_last && loss_of(place.pipeline) >= 0) {
    Tensors arguments = example(place.pipeline).arguments;
    given.blocks.push_back(input_block(BlockKind::kArguments, 0, views_of(arguments, device)));
    (void)run_task(command_of(place, Phase::kFused), given);
    return {};
  }
  const MicrobatchOutputs made = run_task(command_of(place, Phase::kForward), given);
  Tensors outputs;
  for (const OutputBlock& block : made.blocks) {
    if (block.kind == BlockKind::kRecompute)
      given.blocks.push_back(input_block(block.kind, block.index, block.tensors));
    if (block.kind == BlockKind::kActivation) outputs = tensors_over(block.tensors, device);
  }
  if (place.layer >= catalogue_.first_trained_layer(place.pipeline)) {
    Tensors gradients = zero_gradients(outputs);
    given.gradient = input_block(BlockKind::kGradient, place.layer + 1, views_of(gradients, device));
    (void)run_task(command_of(place, Phase::kBackward), given);
  }
  for (at::Tensor& output : outputs)
    output = output.defined() ? output.clone() : output;  // cloned because the block's memory is freed
  return outputs;
}

MicrobatchOutputs WarmUp::run_task(const Command& command, const MicrobatchInputs& inputs) {
  RunningTask task;
  task.command = command;
  task.stage_buffer = &stage_buffer_;
  task.gradient_buffer = &gradient_buffer_;
  place_weights(task, catalogue_, device_);
  if (command.phase != Phase::kForward) (void)place_gradients(task, accumulators_, catalogue_, device_);
  for (const UseMemory& use : task.uses) {
    const WeightGroupRecord& group = catalogue_.weight_groups()[catalogue_.uses()[use.use].group];
    torch_device_.clear(const_cast<std::byte*>(use.weights), group.device_bytes());
  }
  MicrobatchOutputs outputs;
  executor_.clear(task.uses);
  executor_.begin(task.stage_task());
  if (command.phase == Phase::kBackward) executor_.recompute(task.stage_task(), 0, inputs);
  executor_.run(task.stage_task(), 0, inputs, outputs);
  executor_.end(task.stage_task(), task.totals);
  return outputs;
}

Command WarmUp::command_of(const Place& place, Phase phase) const {
  Command command;
  command.pipeline = static_cast<std::uint32_t>(place.pipeline);
  command.phase = phase;
  command.flags = Command::kSavesForRecompute;
  command.layer_base = catalogue_.pipelines()[place.pipeline].first_layer;
  command.first_layer = place.layer;
  command.end_layer = place.layer + 1;
  command.first_trained_layer = catalogue_.first_trained_layer(place.pipeline);
  command.num_microbatches = 1;
  if (phase == Phase::kForward) command.save(place.layer + 1);
  if (phase == Phase::kFused) command.loss = loss_of(place.pipeline);
  return command;
}

std::string WarmUp::kind_of(const Place& place, const Tensors& inputs) const {
  const CatalogueLayer number = catalogue_.pipelines()[place.pipeline].catalogue_layer(place.layer);
  const LayerRecord& layer = catalogue_.layers()[number];
  std::string kind =
      cat(without_number(layer.name.data()), " ", layer.arguments_hash, catalogue_.is_trained(number) ? " trained" : "",
          place.layer > catalogue_.first_trained_layer(place.pipeline) ? " passes gradients on" : "");
  for (const TensorRecord& tensor : catalogue_.tensors_of(number))
    kind += cat(" ", tensor.name.data(), shape_text(tensor.desc));
  Tensors copies = inputs;
  for (const TensorView& view : views_of(copies, torch_device_.device())) kind += shape_text(view.desc);
  return kind;
}

int WarmUp::loss_of(int pipeline) const {
  if (example(pipeline).loss.empty()) return -1;
  const std::vector<Loss>& losses = *pipelines_[pipeline].losses;
  const auto found =
      std::find_if(losses.begin(), losses.end(), [&](const Loss& loss) { return loss.name == example(pipeline).loss; });
  return found == losses.end() ? -1 : static_cast<int>(found - losses.begin());
}

}  // namespace rp
