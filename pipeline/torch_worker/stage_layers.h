// pipeline/torch_worker/stage_layers.h
// Builds the layers of a worker, and points their parameters at the memory of the current task.
//
// Owned by the TorchStageExecutor; all calls come from the thread that computes. A layer is built
// when a stage first needs it, and kept. Its parameters are pointed at the stage's weights, and its
// gradients at the stage's fp32 accumulators, to which autograd adds in place.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "hoststore/catalogue.h"
#include "pipeline/torch_worker/torch_device.h"
#include "roundpipe/loss.h"
#include "roundpipe/model.h"
#include "worker/executor/stage_executor.h"

namespace rp {

// The code of a pipeline, as its user described it.
struct PipelineCode {
  const Model* model = nullptr;
  const std::vector<Loss>* losses = nullptr;
};

class StageLayers {
 public:
  // All arguments must outlive it.
  StageLayers(const std::vector<PipelineCode>& pipelines, const Catalogue& catalogue, TorchDevice& device);

  // Prepares the task's layers: points them at its weights and accumulators, and sets the mode of
  // its round. Throws LayerFailure.
  void bind(const StageTask& task);
  // Lets a layer begin the task. Throws LayerFailure. REQUIRES: bind() was called for it.
  void begin_task(const Command& command, int layer);
  // Lets all layers end their task that have begun one, also if the task failed or was given up.
  void end_tasks();

  // REQUIRES: bind() was called for the task of this command, and the layer belongs to the task.
  [[nodiscard]] Layer& layer(const Command& command, int layer) { return *built(command, layer).layer; }

  // Copies the round's buffers to the layers, for a task's first microbatch. Each next microbatch
  // continues with the buffers that the previous one left.
  void take_buffers(const Command& command, const MicrobatchInputs& inputs);
  // Returns copies of a layer's buffers as they are now.
  [[nodiscard]] Tensors buffers(const Command& command, int layer);

 private:
  struct BuiltLayer {
    std::unique_ptr<Layer> layer;
    std::vector<NamedParameter> parameters;
    std::vector<NamedBuffer> buffers;
    bool trains = true;  // the last argument of train()
  };

  [[nodiscard]] BuiltLayer& built(const Command& command, int layer);
  void bind_layer(const StageTask& task, int layer);
  void bind_parameter(const StageTask& task, const TensorRecord& record, at::Tensor& parameter) const;

  const std::vector<PipelineCode>& pipelines_;
  const Catalogue& catalogue_;
  TorchDevice& device_;
  IndexedVector<CatalogueLayer, BuiltLayer> layers_;
  std::vector<std::pair<int, Layer*>> begun_;  // the layers that have begun a task, by number
};

}  // namespace rp
