#include "pipeline/torch_worker/layer_meter.h"

#include <algorithm>

namespace rp {

namespace {

std::uint64_t bytes_of(const Tensors& tensors) {
  std::uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) bytes += static_cast<std::uint64_t>(tensor.numel()) * tensor.itemsize();
  }
  return bytes;
}

std::uint64_t above(std::uint64_t bytes, std::uint64_t base) { return bytes - std::min(bytes, base); }

void raise(std::uint64_t& most, std::uint64_t bytes) { most = std::max(most, bytes); }

}  // namespace

void LayerMeter::begin(std::size_t num_layers) {
  layers_.assign(num_layers, {});
  resident_bytes_ = device_.take_tensor_bytes().now;
}

LayerMeter::Growth LayerMeter::growth() {
  const TorchDevice::TensorBytes bytes = device_.take_tensor_bytes();
  return {.kept = above(bytes.now, before_), .peak = above(bytes.peak, before_)};
}

// In a longer stage, the input is also a tensor of the stage. The output has its own place in the
// budget.
void LayerMeter::note_boundaries(std::size_t layer, const Tensors& inputs, const Tensors& outputs,
                                 std::uint64_t peak_bytes) {
  LayerMemory& memory = layers_[layer];
  const std::uint64_t input = bytes_of(inputs), output = bytes_of(outputs);
  raise(memory.input_bytes, input);
  raise(memory.output_bytes, output);
  raise(memory.forward_workspace_bytes, above(input + peak_bytes, output));
}

void LayerMeter::end_forward(std::size_t layer, const Tensors& inputs, const Tensors& outputs) {
  note_boundaries(layer, inputs, outputs, growth().peak);
}

void LayerMeter::end_graph(std::size_t layer, const Tensors& inputs, const Tensors& outputs) {
  const Growth grown = growth();
  note_boundaries(layer, inputs, outputs, grown.peak);
  raise(layers_[layer].saved_bytes, grown.kept);
  raise(layers_[layer].recompute_workspace_bytes, above(grown.peak, grown.kept));
}

void LayerMeter::end_evaluated_loss(std::size_t layer, const Tensors& outputs) {
  raise(layers_[layer].forward_workspace_bytes, growth().peak + bytes_of(outputs));
}

void LayerMeter::end_backward(std::size_t layer, const Tensors& gradients) {
  raise(layers_[layer].backward_workspace_bytes, growth().peak + bytes_of(gradients));
}

}  // namespace rp
