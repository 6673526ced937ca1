// pipeline/torch_worker/warm_up.h
// Runs each kind of layer once, forward and backward, on a model's example, before a worker's first task
// (docs/design/warm-up.md).
//
// It drives a StageExecutor as a worker does, with tasks of one layer, weights of zeros and memory that is given back.
// Layers are of the same kind if they have the same name except for its number, the same arguments and parameters, and
// inputs of the same shapes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "device/device.h"
#include "hoststore/catalogue.h"
#include "pipeline/torch_worker/stage_layers.h"
#include "pipeline/torch_worker/torch_device.h"
#include "worker/executor/stage_executor.h"
#include "worker/running_task.h"

namespace rp {

class WarmUp {
 public:
  // All must outlive it.
  WarmUp(StageExecutor& executor, const std::vector<PipelineCode>& pipelines, const Catalogue& catalogue,
         TorchDevice& torch_device, Device& device)
      : executor_(executor),
        pipelines_(pipelines),
        catalogue_(catalogue),
        torch_device_(torch_device),
        device_(device) {}

  // False: no pipeline has an example. Throws rp::Error naming the layer that does not run on its own.
  [[nodiscard]] bool run();

 private:
  // A layer that runs.
  struct Place {
    int pipeline = 0;
    int layer = 0;  // the pipeline's
  };

  void run_pipeline(int pipeline);
  // Forward and backward, or, where the example has a loss for the last layer, both at once. Gives the outputs.
  [[nodiscard]] Tensors run_layer(const Place& place, Tensors inputs);
  [[nodiscard]] MicrobatchOutputs run_task(const Command& command, const MicrobatchInputs& inputs);
  [[nodiscard]] Command command_of(const Place& place, Phase phase) const;
  [[nodiscard]] std::string kind_of(const Place& place, const Tensors& inputs) const;
  // Of the pipeline's losses the example's; -1: none.
  [[nodiscard]] int loss_of(int pipeline) const;
  [[nodiscard]] const CallContents& example(int pipeline) const {
    return pipelines_[static_cast<std::size_t>(pipeline)].model->example();
  }

  StageExecutor& executor_;
  const std::vector<PipelineCode>& pipelines_;
  const Catalogue& catalogue_;
  TorchDevice& torch_device_;
  Device& device_;
  StageBuffer stage_buffer_;
  GradientBuffer gradient_buffer_;
  ScratchMemory accumulators_;
  std::map<std::string, Tensors> outputs_of_kind_;
};

}  // namespace rp
