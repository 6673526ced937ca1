// pipeline/torch_worker/warm_up.h
// Runs each kind of layer once, forward and backward, on the model's example, before a worker's
// first task (docs/design/warm-up.md).
//
// It drives a StageExecutor as a worker does, with tasks of one layer, weights that are zeros, and
// memory that is freed afterwards. Layers are of the same kind if they have the same name except
// for a number, the same arguments and parameters, and inputs of the same shapes.
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
  // All arguments must outlive it.
  WarmUp(StageExecutor& executor, const std::vector<PipelineCode>& pipelines, const Catalogue& catalogue,
         TorchDevice& torch_device, Device& device)
      : executor_(executor),
        pipelines_(pipelines),
        catalogue_(catalogue),
        torch_device_(torch_device),
        device_(device) {}

  // Returns false if no pipeline has an example. Throws rp::Error naming a layer that does not run
  // on the example.
  [[nodiscard]] bool run();

 private:
  // The layer that is being run.
  struct Place {
    int pipeline = 0;
    int layer = 0;  // number within the pipeline
  };

  void run_pipeline(int pipeline);
  // Runs forward and backward; both in one task if this is the last layer and the example has a
  // loss. Returns the outputs.
  [[nodiscard]] Tensors run_layer(const Place& place, Tensors inputs);
  [[nodiscard]] MicrobatchOutputs run_task(const Command& command, const MicrobatchInputs& inputs);
  [[nodiscard]] Command command_of(const Place& place, Phase phase) const;
  [[nodiscard]] std::string kind_of(const Place& place, const Tensors& inputs) const;
  // Returns the index of the example's loss in the pipeline's losses, or -1 if there is none.
  [[nodiscard]] int loss_of(int pipeline) const;
  [[nodiscard]] const CallContents& example(int pipeline) const { return pipelines_[pipeline].model->example(); }

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
