// worker/stage_executor.h
// What runs the layers of a stage: the device's second face. LibTorch's is in pipeline/; tests have one of their own.
//
// Owned by the worker; all calls come from its compute thread. Memory that it is given belongs to the worker.
#pragma once

#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "hoststore/boundary.h"
#include "hoststore/control.h"

namespace rp {

// Device memory of one use of a block in a stage.
struct UseMemory {
  std::uint32_t use = 0;
  const std::byte* weights = nullptr;  // the block's working copy
  float* accumulator = nullptr;        // fp32 gradient over the microbatches; null in a forward stage
  std::byte* gradient = nullptr;       // the rounded gradient for the download; null in a forward stage
};

// A task with its memory. `uses` is sorted by (layer, use).
struct StageTask {
  const Command* command = nullptr;
  std::span<const UseMemory> uses;
};

// Inputs of one microbatch in device memory, valid during run().
struct MicrobatchInputs {
  std::vector<TensorView> activation;  // at the stage's first layer
  std::vector<TensorView> gradient;    // at its end; backward only
  std::vector<TensorView> arguments;   // of the loss; fused only
};

// A block that goes back to the host store: the tensors, and what keeps them alive until the copy is done.
struct OutputBlock {
  BlockKind kind = BlockKind::kActivation;
  int boundary = 0;
  std::vector<TensorView> tensors;
  std::shared_ptr<const void> owner;
};

struct MicrobatchOutputs {
  std::vector<OutputBlock> blocks;
  double loss = 0;  // fused only
};

// What a task gives besides its blocks, by use (as in StageTask::uses) and by layer of the stage.
struct TaskTotals {
  std::vector<double> square_sums;
  std::vector<LayerTime> layer_times;
};

// An exception of the user's, with the layer that threw it, or FailureRecord::kLoss.
class LayerFailure : public std::runtime_error {
 public:
  LayerFailure(std::int64_t layer, const std::string& message) : std::runtime_error(message), layer_(layer) {}
  [[nodiscard]] std::int64_t layer() const { return layer_; }

 private:
  std::int64_t layer_;
};

class StageExecutor {
 public:
  virtual ~StageExecutor() = default;

  // Binds the weights of the stage. The memory stays the task's until end() returned.
  virtual void begin(const StageTask& task) = 0;

  // Runs one microbatch, 0..M-1 in order: forward; forward, loss and backward (fused); or recompute and backward.
  // Gradients are added to the accumulators (the first microbatch sets them). Throws LayerFailure, or anything else,
  // which then has no layer.
  virtual void run(const StageTask& task, int microbatch, const MicrobatchInputs& inputs,
                   MicrobatchOutputs& outputs) = 0;

  // Rounds the accumulators into the gradients.
  virtual void end(const StageTask& task, TaskTotals& totals) = 0;
};

}  // namespace rp
