// worker/executor/stage_executor.h
// Defines the interface through which a worker runs the layers of a stage. pipeline/torch_worker
// implements it with LibTorch, emulated_stage_executor.h in emulated time, and tests have their own
// implementations.
//
// Owned by the worker. All calls except collect() come from the worker's compute thread. Memory
// that is passed to an executor belongs to the worker.
//
// On a device that has streams of its own, run() and end() return when their work is enqueued on
// the compute stream. Memory that is passed to them is valid in that stream's order.
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

// The device memory of one use of a weight group in a stage.
struct UseMemory {
  UseId use{};
  const std::byte* weights = nullptr;  // the group's working copy
  float* accumulator = nullptr;        // fp32 sum over the microbatches; null in forward stages and for frozen groups
  std::byte* gradient = nullptr;       // the rounded gradient, which is downloaded; null if accumulator is
};

// A task and its memory. `uses` is sorted by (layer, use).
struct StageTask {
  const Command* command = nullptr;
  std::span<const UseMemory> uses;
  double loss_scale = 1;  // factor by which gradients inside the pipeline are multiplied
  // On the clock of now_ns(): the time from which on only uploads kept the weights from being on
  // the device, and the time when the last upload was enqueued.
  std::int64_t weights_known_ns = 0;
  std::int64_t weights_enqueued_ns = 0;
};

// A block of the host store, copied to device memory.
struct InputBlock {
  BlockKind kind = BlockKind::kActivation;
  int index = 0;  // boundary or layer of the pipeline
  std::vector<TensorView> tensors;
  std::vector<std::byte> structure;
};

// Inputs of one microbatch, valid during recompute() and run(). They are the blocks that
// input_rows() of the command names, if they exist.
struct MicrobatchInputs {
  std::vector<InputBlock> blocks;  // all inputs except the gradient
  // The gradient of a backward stage's output. It is separate because it may arrive while
  // recompute() reads the others.
  std::optional<InputBlock> gradient;
  // On the clock of now_ns(): when the host had enqueued the last upload of the other inputs
  // (backward stages only), and of all inputs.
  std::int64_t others_known_ns = 0;
  std::int64_t known_ns = 0;

  // Returns null if there is no such block.
  [[nodiscard]] const InputBlock* find(BlockKind kind, int index) const {
    if (kind == BlockKind::kGradient) return gradient && gradient->index == index ? &*gradient : nullptr;
    for (const InputBlock& block : blocks) {
      if (block.kind == kind && block.index == index) return &block;
    }
    return nullptr;
  }
  // REQUIRES: find(kind, index) is not null.
  [[nodiscard]] const std::vector<TensorView>& tensors(BlockKind kind, int index) const {
    const InputBlock* block = find(kind, index);
    RP_ASSERT(block != nullptr);
    return block->tensors;
  }
};

// A block that is copied to the host store, and the owner that keeps its tensors alive until the
// copy is done.
struct OutputBlock {
  BlockKind kind = BlockKind::kActivation;
  int index = 0;  // boundary or layer of the pipeline
  std::vector<TensorView> tensors;
  std::shared_ptr<const void> owner;
};

struct MicrobatchOutputs {
  std::vector<OutputBlock> blocks;
  LossRecord losses;  // fused stages only
};

// The time during which a microbatch was computed or recomputed, on the clock of now_ns().
struct MicrobatchTime {
  int microbatch = 0;
  bool is_recompute = false;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

// The results of a task other than its blocks: by use (as in StageTask::uses), by layer of the
// stage, or by microbatch.
struct TaskTotals {
  std::vector<double> square_sums;  // of the rounded gradients; 0 for uses without one
  std::vector<LayerTime> layer_times;
  std::vector<LayerMemory> layer_memory;  // empty if it is not measured
  std::uint64_t resident_bytes = 0;       // tensors on the device before the task
  std::vector<LossRecord> losses;         // fused stages only; those that run() returned
  ComputeTimes compute{};
  std::vector<MicrobatchTime> times;  // in order of time, as the host saw them
  std::size_t results = 0;            // private to the executor, from end() to collect()
};

// An exception of the user's code, with the layer of the pipeline that threw it, or
// FailureRecord::kLoss. Also reports memory that the layer lacked (kNoResource).
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

  // Called before all other methods, in a thread of its own. Uses every kernel and library that the tasks will use
  // once, because a GPU loads them at their first use, and this must not happen while streams wait for other processes.
  // Takes memory of `device`, the worker's device, and returns it. Returns false if there is nothing to do.
  [[nodiscard]] virtual bool warm_up(Device& device) {
    (void)device;
    return false;
  }

  // Called before the first task of each epoch. Tasks that were begun before will not go on. All following calls, up to
  // the end of the epoch, come from another thread than those before.
  virtual void begin_epoch() {}

  // Sets the accumulators of the next task to zero. Its weights may still be on their way.
  virtual void clear(std::span<const UseMemory> uses) { (void)uses; }

  // Binds the weights of the stage. The memory belongs to the task until end() has returned.
  virtual void begin(const StageTask& task) = 0;

  // Called for backward stages, before run() of the same microbatch. Does everything that needs no
  // gradient, because the gradient may not have arrived yet. Throws the same exceptions as run().
  virtual void recompute(const StageTask& task, int microbatch, const MicrobatchInputs& inputs) {
    (void)task, (void)microbatch, (void)inputs;
  }

  // Runs one microbatch, 0..M-1 in order: forward; or forward, loss and backward (fused); or
  // backward after recompute(). Returns the blocks that docs/design/rounds.md names for the
  // command. Gradients are added to the accumulators; the first microbatch sets them. Throws
  // LayerFailure, or any other exception, which is then reported without a layer.
  virtual void run(const StageTask& task, int microbatch, const MicrobatchInputs& inputs,
                   MicrobatchOutputs& outputs) = 0;

  // Rounds the accumulators into the gradients. Fills in all of the totals except the losses.
  virtual void end(const StageTask& task, TaskTotals& totals) = 0;

  // Implemented by executors whose device runs asynchronously. Enqueues the copy of the results
  // that the device computed for the task on the output download stream, which already waits for
  // all of the task's computation. Called after end(), with the same totals.
  virtual void download(const TaskTotals& totals) { (void)totals; }

  // Implemented by the same executors. Fills in the downloaded results in totals that end() got.
  // Called once per task, in the order of the tasks, when the device has finished the task. It is
  // called in a thread of a stream, so it must neither wait nor enqueue.
  virtual void collect(TaskTotals& totals) { (void)totals; }
};

}  // namespace rp
