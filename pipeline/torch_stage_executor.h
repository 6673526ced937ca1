// pipeline/torch_stage_executor.h
// Runs the layers of a stage with LibTorch on the CPU.
//
// Every layer is an autograd graph of its own, cut at its borders, so that a stage's result does not depend on where
// the model is cut. Layers are built when a stage first needs them and kept; their parameters are pointed at the
// stage's weights, their gradients at its fp32 accumulators, which autograd adds to in place.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "hoststore/catalogue.h"
#include "optimizer/thread_team.h"
#include "roundpipe/loss.h"
#include "roundpipe/model.h"
#include "worker/stage_executor.h"

namespace rp {

class TorchStageExecutor : public StageExecutor {
 public:
  // Called before each layer runs, forward or backward; for the fault board.
  using LayerReport = std::function<void(int layer, int microbatch)>;

  // Model, loss and catalogue must outlive it. Before each layer, LibTorch's default generator of the CPU, which dropout
  // draws from, is seeded from `seed`, round, layer and microbatch: a recompute draws what the forward drew.
  TorchStageExecutor(const Model& model, const Loss& loss, const Catalogue& catalogue, int num_threads,
                     std::uint64_t seed, LayerReport report = {});

  void begin(const StageTask& task) override;
  void run(const StageTask& task, int microbatch, const MicrobatchInputs& inputs, MicrobatchOutputs& outputs) override;
  void end(const StageTask& task, TaskTotals& totals) override;

 private:
  struct BuiltLayer {
    std::unique_ptr<Layer> layer;
    std::vector<NamedParameter> parameters;
  };
  // One layer's part of a microbatch between its forward and its backward.
  struct Graph {
    Tensors inputs;
    Tensors outputs;
  };

  BuiltLayer& built(int layer);
  void bind_layer(const StageTask& task, int layer);
  [[nodiscard]] Tensors run_layer(const Command& command, int layer, const Tensors& inputs);
  void run_forward(const Command& command, Tensors activation, MicrobatchOutputs& outputs);
  [[nodiscard]] std::vector<Graph> run_forward_with_graphs(const Command& command, Tensors activation);
  [[nodiscard]] double run_loss(const Graph& last, const Tensors& arguments);
  [[nodiscard]] Tensors run_backward(const Command& command, std::vector<Graph> graphs, Tensors gradients,
                                     bool last_is_done);
  [[nodiscard]] LayerTime& time_of(const Command& command, int layer);

  const Model& model_;
  const Loss& loss_;
  const Catalogue& catalogue_;
  const int num_threads_;
  const std::uint64_t seed_;
  const LayerReport report_;
  at::Generator generator_;
  int microbatch_ = -1;
  bool threads_set_ = false;
  std::vector<BuiltLayer> layers_;
  std::vector<LayerTime> times_;  // by layer of the stage
  ThreadTeam team_;
  std::vector<double> partial_sums_;
};

}  // namespace rp
