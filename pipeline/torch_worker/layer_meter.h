// pipeline/torch_worker/layer_meter.h
// Measures how much device memory each layer of a task needs, from what LibTorch allocates and
// frees while the layer is enqueued. Allocations follow the host's order, whenever the device
// computes.
//
// Owned by the TorchStageExecutor; used by the computing thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "hoststore/round_table.h"
#include "pipeline/torch_worker/torch_device.h"
#include "roundpipe/layer.h"

namespace rp {

class LayerMeter {
 public:
  // The device must outlive it.
  explicit LayerMeter(TorchDevice& device) : device_(device) {}

  // Begins a task with this number of layers.
  void begin(std::size_t num_layers);

  // Begins a pass of a layer. The end_...() method that is called at its end determines what kind
  // of pass it was. The maximum over the microbatches is kept.
  void start() { before_ = device_.take_tensor_bytes().now; }
  // Ends the beginning of a task.
  void end_beginning(std::size_t layer) { layers_[layer].expanded_bytes = growth().kept; }
  // Ends a forward without a graph.
  void end_forward(std::size_t layer, const Tensors& inputs, const Tensors& outputs);
  // Ends a forward with a graph, in a fused stage or in a recompute.
  void end_graph(std::size_t layer, const Tensors& inputs, const Tensors& outputs);
  // Ends a loss without a backward, after the layer that computed `outputs`.
  void end_evaluated_loss(std::size_t layer, const Tensors& outputs);
  // Ends a backward, or a loss together with the backward of the last layer. `gradients` are those
  // that entered it.
  void end_backward(std::size_t layer, const Tensors& gradients);

  [[nodiscard]] const std::vector<LayerMemory>& layers() const { return layers_; }
  // Bytes of the tensors that existed before the task.
  [[nodiscard]] std::uint64_t resident_bytes() const { return resident_bytes_; }

 private:
  struct Growth {
    std::uint64_t kept = 0;  // of tensors allocated since start()
    std::uint64_t peak = 0;
  };
  [[nodiscard]] Growth growth();
  void note_boundaries(std::size_t layer, const Tensors& inputs, const Tensors& outputs, std::uint64_t peak_bytes);

  TorchDevice& device_;
  std::vector<LayerMemory> layers_;
  std::uint64_t before_ = 0;
  std::uint64_t resident_bytes_ = 0;
};

}  // namespace rp
