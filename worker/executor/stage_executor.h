// worker/executor/stage_executor.h
// What runs the layers of a stage: the device's second face. LibTorch's is in pipeline/; tests have one of their own.
//
// Owned by the worker; all calls but collect() come from its compute thread. Memory that it is given belongs to the
// worker.
//
// On a device with streams of its own, run() and end() return when what they do is enqueued on the compute stream;
// memory that they are given is valid in that stream's order.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/check.h"
#include "device/device.h"
#include "hoststore/boundary.h"
#include "hoststore/control.h"
#include "roundpipe/error.h"

namespace rp {

// Device memory of one use of a weight group in a stage.
struct UseMemory {
  std::uint32_t use = 0;
  const std::byte* weights = nullptr;  // the group's working copy
  float* accumulator = nullptr;        // fp32 gradient over the microbatches; null in a forward stage and where frozen
  std::byte* gradient = nullptr;       // the rounded gradient for the download; likewise
};

// A task with its memory. `uses` is sorted by (layer, use).
struct StageTask {
  const Command* command = nullptr;
  std::span<const UseMemory> uses;
  double loss_scale = 1;  // what the gradients inside the pipeline are multiplied by
  // On now_ns()'s clock: since when nothing but uploads kept the weights back, and when the last upload was enqueued.
  std::int64_t weights_known_ns = 0;
  std::int64_t weights_enqueued_ns = 0;
};

// A block from the host store in device memory.
struct InputBlock {
  BlockKind kind = BlockKind::kActivation;
  int index = 0;  // boundary or layer of the pipeline
  std::vector<TensorView> tensors;
  std::vector<std::byte> structure;
};

// Inputs of one microbatch, valid during recompute() and run(): what input_rows() of its command names, as far as it
// exists.
struct MicrobatchInputs {
  std::vector<InputBlock> blocks;  // all but the gradient
  // Of a backward stage's output. Apart from the others: it may arrive while recompute() reads those.
  std::optional<InputBlock> gradient;
  // When the host had enqueued the last upload of it, on now_ns()'s clock: of the others (backward stages only), and of
  // all.
  std::int64_t others_known_ns = 0;
  std::int64_t known_ns = 0;

  // Null if there is none.
  [[nodiscard]] const InputBlock* find(BlockKind kind, int index) const {
    if (kind == BlockKind::kGradient) return gradient && gradient->index == index ? &*gradient : nullptr;
    for (const InputBlock& block : blocks) {
      if (block.kind == kind && block.index == index) return &block;
    }
    return nullptr;
  }
  // REQUIRES: it is there.
  [[nodiscard]] const std::vector<TensorView>& tensors(BlockKind kind, int index) const {
    const InputBlock* block = find(kind, index);
    RP_ASSERT(block != nullptr);
    return block->tensors;
  }
};

// A block that goes back to the host store: the tensors, and what keeps them alive until the copy is done.
struct OutputBlock {
  BlockKind kind = BlockKind::kActivation;
  int index = 0;  // boundary or layer of the pipeline
  std::vector<TensorView> tensors;
  std::shared_ptr<const void> owner;
};

struct MicrobatchOutputs {
  std::vector<OutputBlock> blocks;
  LossRecord losses;  // fused only
};

// When a microbatch was computed, or recomputed, on now_ns()'s clock.
struct MicrobatchTime {
  int microbatch = 0;
  bool is_recompute = false;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

// What a task gives besides its blocks, by use (as in StageTask::uses), by layer of the stage and by microbatch.
struct TaskTotals {
  std::vector<double> square_sums;  // of the rounded gradients; 0 for uses without one
  std::vector<LayerTime> layer_times;
  std::vector<LayerMemory> layer_memory;  // empty where it is not measured
  std::uint64_t resident_bytes = 0;       // tensors on the device before the task
  std::vector<LossRecord> losses;         // fused only; those that run() gave
  ComputeTimes compute{};
  std::vector<MicrobatchTime> times;  // in their order, as the host saw them
  std::size_t results = 0;            // the executor's own, from end() to collect()
};

// An exception of the user's, with the layer of the pipeline that threw it, or FailureRecord::kLoss; or memory that the
// layer lacked (kNoResource).
class LayerFailure : public std::runtime_error {
 public:
  LayerFailure(std::int64_t layer, const std::string& message, ExitCode code = ExitCode::kUserError)
      : std::runtime_error(message), layer_(layer), code_(code) {}
  [[nodiscard]] std::int64_t layer() const { return layer_; }
  [[nodiscard]] ExitCode code() const { return code_; }

 private:
  std::int64_t layer_;
  ExitCode code_;
};

class StageExecutor {
 public:
  virtual ~StageExecutor() = default;

  // Before all other calls: uses each kernel and library once that the tasks will use, because a GPU loads them at
  // their first use, which must not happen while streams wait for other processes. Takes memory of `device`, the
  // worker's, and gives it back. False: it does nothing.
  [[nodiscard]] virtual bool warm_up(Device& device) {
    (void)device;
    return false;
  }

  // Makes the accumulators of the next task zero, while its weights may still be on their way.
  virtual void clear(std::span<const UseMemory> uses) { (void)uses; }

  // Binds the weights of the stage. The memory stays the task's until end() returned.
  virtual void begin(const StageTask& task) = 0;

  // Backward stages, before run() of the same microbatch: does what needs no gradient, which may not be there yet.
  // Throws as run().
  virtual void recompute(const StageTask& task, int microbatch, const MicrobatchInputs& inputs) {
    (void)task, (void)microbatch, (void)inputs;
  }

  // Runs one microbatch, 0..M-1 in order: forward; forward, loss and backward (fused); or backward after recompute().
  // The blocks that it gives are those that docs/design/rounds.md names for the command. Gradients are added to the
  // accumulators (the first microbatch sets them). Throws LayerFailure, or anything else, which then has no layer.
  virtual void run(const StageTask& task, int microbatch, const MicrobatchInputs& inputs,
                   MicrobatchOutputs& outputs) = 0;

  // Rounds the accumulators into the gradients. Fills in all of the totals but the losses.
  virtual void end(const StageTask& task, TaskTotals& totals) = 0;

  // Executors whose device computes later than it is told to: enqueues the copy of what the device finds out of the
  // task on the stream of outputs' downloads, which comes after all of the task's computation by now. Called after
  // end(), with its totals.
  virtual void download(const TaskTotals& totals) { (void)totals; }

  // Likewise: fills in what was copied so, in totals that end() was given. Called once per task, in their order, when
  // the device has done all of the task, in a thread of a stream's: it must neither wait nor enqueue.
  virtual void collect(TaskTotals& totals) { (void)totals; }
};

}  // namespace rp
