// pipeline/torch_worker/torch_stage_executor.h
// Runs the layers of a stage with LibTorch, on any TorchDevice.
//
// Every layer is an autograd graph of its own, cut at the layer's inputs and outputs, so that
// results do not depend on where the model is cut into stages.
#pragma once

#include <functional>
#include <vector>

#include "hoststore/catalogue.h"
#include "models/recompute_context.h"
#include "pipeline/torch_worker/layer_meter.h"
#include "pipeline/torch_worker/result_pages.h"
#include "pipeline/torch_worker/stage_layers.h"
#include "pipeline/torch_worker/torch_device.h"
#include "worker/executor/stage_executor.h"

namespace rp {

class TorchStageExecutor : public StageExecutor {
 public:
  struct Options {
    int num_threads = 1;  // CPU threads
    bool warms_up = false;
  };
  // Called before each forward or backward of a layer, with what it reads; used for the fault board.
  using LayerReport = std::function<void(int layer, int microbatch, const Tensors& inputs)>;

  // The code of the pipelines, the catalogue and the device must outlive it. Before each layer, the
  // device's generator, from which dropout draws, is seeded from the pipeline's seed, the round,
  // the layer and the microbatch. So a recompute draws the same numbers as the forward.
  TorchStageExecutor(std::vector<PipelineCode> pipelines, const Catalogue& catalogue, TorchDevice& device,
                     Options options, LayerReport report = {});

  // Warms up each kind of layer of the pipelines whose model has an example.
  [[nodiscard]] bool warm_up(Device& device) override;
  void begin_epoch() override;
  void clear(std::span<const UseMemory> uses) override;
  void begin(const StageTask& task) override;
  void recompute(const StageTask& task, int microbatch, const MicrobatchInputs& inputs) override;
  void run(const StageTask& task, int microbatch, const MicrobatchInputs& inputs, MicrobatchOutputs& outputs) override;
  void end(const StageTask& task, TaskTotals& totals) override;
  void download(const TaskTotals& totals) override { results_.download(totals.results); }
  void collect(TaskTotals& totals) override { results_.read(totals.results, totals); }

 private:
  // The state of one layer for one microbatch between forward and backward.
  struct Graph {
    Tensors inputs;
    Tensors outputs;
  };
  // The microbatch that is being computed.
  struct Run {
    const Command& command;
    int microbatch;
    const MicrobatchInputs& inputs;
    MicrobatchOutputs& outputs;
    double loss_scale;
  };

  // Called before LibTorch is used in the thread that computes.
  void enter_thread();
  void give_buffers(const Run& run);
  void set_random_seed(const Run& run, int layer);
  [[nodiscard]] Tensors with_imports(const Run& run, BlockKind kind, int index, BlockKind import,
                                     int num_imports) const;
  [[nodiscard]] Tensors activation_at(const Run& run, int boundary) const;
  [[nodiscard]] Tensors run_layer(const Run& run, int layer, const Tensors& inputs, bool outputs_are_read);
  [[nodiscard]] Tensors forward(const Run& run, int end_layer);
  [[nodiscard]] Graph forward_with_graph(const Run& run, int layer, const Tensors& activation, bool outputs_are_read);
  void run_fused(const Run& run);
  void run_backward(const Run& run);
  // Runs the loss, and the backward through the loss and the last layer.
  void run_loss(const Run& run, const Tensors& outputs);
  // Runs only the loss.
  void evaluate_loss(const Run& run, const Tensors& outputs);
  // Returns the values of the loss as tensors. Throws what the user's function throws, and an
  // exception if the function does not return numbers.
  [[nodiscard]] Tensors call_loss(const Run& run, const Tensors& outputs) const;
  void record_losses(const Run& run, const Tensors& values);
  void give_input_gradient(const Run& run, Tensors gradients) const;
  [[nodiscard]] OutputBlock output_block(BlockKind kind, int index, const Tensors& tensors, int layer) const;
  [[nodiscard]] int num_layers_of(const Command& command) const;
  [[nodiscard]] Tensors backward(const Run& run, int layer, const Graph& graph, const Tensors& gradients, bool is_done);
  [[nodiscard]] LayerTime& time_of(const Command& command, int layer);
  [[nodiscard]] static std::size_t place_of(const Command& command, int layer) {
    return static_cast<std::size_t>(layer - command.first_layer);
  }

  const std::vector<PipelineCode> pipelines_;
  const Catalogue& catalogue_;
  TorchDevice& device_;
  const Options options_;
  const LayerReport report_;
  at::Generator generator_;
  bool has_entered_ = false;  // true once enter_thread() has done its work
  StageLayers layers_;
  LayerMeter meter_;
  ResultPages results_;
  std::vector<Graph> recomputed_;  // from the first layer on; only the last if each is recomputed by itself
};

}  // namespace rp
