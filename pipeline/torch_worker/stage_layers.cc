#include "pipeline/torch_worker/stage_layers.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "models/layers/scalar_type.h"
#include "pipeline/description/description.h"
#include "pipeline/description/tensors.h"
#include "pipeline/torch_worker/user_code.h"

namespace rp {

StageLayers::StageLayers(const std::vector<PipelineCode>& pipelines, const Catalogue& catalogue, TorchDevice& device)
    : pipelines_(pipelines), catalogue_(catalogue), device_(device), layers_(catalogue.num_layers()) {}

StageLayers::BuiltLayer& StageLayers::built(const Command& command, int layer) {
  const CatalogueLayer number = command.catalogue_layer(layer);
  BuiltLayer& place = layers_[number];
  if (!place.layer) {
    run_user_code(layer, [&] {
      place.layer = pipelines_[command.pipeline].model->layers()[layer].make();
      place.parameters = place.layer->parameters();
      place.buffers = place.layer->buffers();
      place.layer->train(place.trains);
    });
    compare_parameters(place.parameters, catalogue_, number);
    for (NamedBuffer& buffer : place.buffers) {
      if (buffer.value.defined() && buffer.value.device() != device_.device())
        buffer.value.set_data(buffer.value.to(device_.device()));
    }
  }
  return place;
}

void StageLayers::bind(const StageTask& task) {
  for (int layer = task.command->first_layer; layer < task.command->end_layer; ++layer) bind_layer(task, layer);
}

void StageLayers::bind_layer(const StageTask& task, int layer) {
  const Command& command = *task.command;
  BuiltLayer& place = built(command, layer);
  const auto tensors = catalogue_.tensors_of(command.catalogue_layer(layer));
  for (std::size_t i = 0; i < tensors.size(); ++i) bind_parameter(task, tensors[i], place.parameters[i].value);
  const bool trains = command.round_mode == RoundMode::kTrain;
  if (place.trains == trains) return;
  place.trains = trains;
  run_user_code(layer, [&] { place.layer->train(trains); });
}

void StageLayers::begin_task(const Command& command, int layer) {
  begun_.emplace_back(layer, built(command, layer).layer.get());
  run_user_code(layer, [&] { begun_.back().second->begin_task(); });
}

void StageLayers::end_tasks() {
  for (const auto& [number, layer] : std::exchange(begun_, {})) run_user_code(number, [&] { layer->end_task(); });
}

void StageLayers::bind_parameter(const StageTask& task, const TensorRecord& record, at::Tensor& parameter) const {
  const auto memory = std::find_if(task.uses.begin(), task.uses.end(),
                                   [&record](const UseMemory& use) { return use.use == record.use; });
  const TensorDesc& desc = record.desc;
  const at::IntArrayRef shape(desc.shape.data(), static_cast<std::size_t>(desc.rank));
  parameter.set_data(tensor_over(memory->weights + record.element_offset * dtype_bytes(desc.dtype), shape,
                                 scalar_type_of(desc.dtype), device_.device()));
  if (!parameter.requires_grad()) return;
  parameter.set_grad_dtype(at::kFloat);
  parameter.mutable_grad() =
      memory->accumulator == nullptr
          ? at::Tensor()
          : tensor_over(reinterpret_cast<const std::byte*>(memory->accumulator + record.element_offset), shape,
                        at::kFloat, device_.device());
}

void StageLayers::take_buffers(const Command& command, const MicrobatchInputs& inputs) {
  const c10::NoGradGuard no_grad;
  for (int layer = command.first_layer; layer < command.end_layer; ++layer) {
    std::vector<NamedBuffer>& buffers = built(command, layer).buffers;
    const InputBlock* block = buffers.empty() ? nullptr : inputs.find(BlockKind::kBuffers, layer);
    if (block == nullptr) continue;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      if (buffers[i].value.defined()) buffers[i].value.copy_(tensor_over(block->tensors.at(i), device_.device()));
    }
  }
}

Tensors StageLayers::buffers(const Command& command, int layer) {
  const c10::NoGradGuard no_grad;
  Tensors values;
  for (const NamedBuffer& buffer : built(command, layer).buffers) {
    values.push_back(buffer.value.defined() ? buffer.value.clone() : buffer.value);  // the next task may change it
  }
  return values;
}

}  // namespace rp
