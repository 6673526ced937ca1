// pipeline/torch_worker/layer_meter.h
// What the layers of a task take of the device's memory, from what LibTorch takes and gives back while they are
// enqueued: that happens in the host's order, whenever the device computes.
//
// Owned by the TorchStageExecutor; the computing thread's.
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

  // A task of so many layers.
  void begin(std::size_t num_layers);

  // A layer's pass begins. What it ends with says what it was; the largest of the microbatches counts.
  void start() { before_ = device_.take_tensor_bytes().now; }
  // A forward without a graph.
  void end_forward(std::size_t layer, const Tensors& inputs, const Tensors& outputs);
  // One with a graph, in a fused stage or of a recompute.
  void end_graph(std::size_t layer, const Tensors& inputs, const Tensors& outputs);
  // A loss without a backward, behind the layer whose outputs these are.
  void end_evaluated_loss(std::size_t layer, const Tensors& outputs);
  // A backward, or a loss with that of the layer before it. `gradients`: that came to it.
  void end_backward(std::size_t layer, const Tensors& gradients);

  [[nodiscard]] const std::vector<LayerMemory>& layers() const { return layers_; }
  // Tensors that were there before the task.
  [[nodiscard]] std::uint64_t resident_bytes() const { return resident_bytes_; }

 private:
  struct Growth {
    std::uint64_t kept = 0;  // since start()
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
