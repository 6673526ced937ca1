// pipeline/torch_worker/stage_layers.h
// The layers that a worker has built, and the memory that their parameters are pointed at.
//
// Owned by the TorchStageExecutor; all calls come from the thread that computes. Layers are built when a stage first
// needs them and kept; their parameters are pointed at the stage's weights, their gradients at its fp32 accumulators,
// which autograd adds to in place.
#pragma once

#include <memory>
#include <vector>

#include "hoststore/catalogue.h"
#include "pipeline/torch_worker/torch_device.h"
#include "roundpipe/loss.h"
#include "roundpipe/model.h"
#include "worker/executor/stage_executor.h"

namespace rp {

// What a pipeline runs, as its user described it.
struct PipelineCode {
  const Model* model = nullptr;
  const std::vector<Loss>* losses = nullptr;
};

class StageLayers {
 public:
  // All must outlive it.
  StageLayers(const std::vector<PipelineCode>& pipelines, const Catalogue& catalogue, TorchDevice& device);

  // The task's layers, with its weights and accumulators, in its round's mode. Throws LayerFailure.
  void bind(const StageTask& task);

  // REQUIRES: bind() for this command's task, of whose layers it is.
  [[nodiscard]] Layer& layer(const Command& command, int layer) { return *built(command, layer).layer; }

  // A task's first microbatch begins with the round's buffers; the next one with what this one leaves.
  void take_buffers(const Command& command, const MicrobatchInputs& inputs);
  // Of a layer, as they are now: copies.
  [[nodiscard]] Tensors buffers(const Command& command, int layer);

 private:
  struct BuiltLayer {
    std::unique_ptr<Layer> layer;
    std::vector<NamedParameter> parameters;
    std::vector<NamedBuffer> buffers;
    bool trains = true;  // what train() was told last
  };

  [[nodiscard]] BuiltLayer& built(const Command& command, int layer);
  void bind_layer(const StageTask& task, int layer);
  void bind_parameter(const StageTask& task, const TensorRecord& record, at::Tensor& parameter) const;

  const std::vector<PipelineCode>& pipelines_;
  const Catalogue& catalogue_;
  TorchDevice& device_;
  std::vector<BuiltLayer> layers_;  // by the catalogue's number
};

}  // namespace rp
