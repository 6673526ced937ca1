// worker/executor/emulated_stage_executor.h
// Runs stages in emulated time on an EmulatedDevice: it describes their outputs, waits for the time
// of their layers, and touches no data.
//
// Computing is done by one engine. In the time of the model, a microbatch begins when the previous
// one has ended and its weights and inputs are on the device; run() returns when it has ended. A
// GPU has work queued: a microbatch that needs an upload which is in progress is launched behind
// that upload, and one whose inputs are there is launched while the previous one runs. So a delay
// of the host counts only if it requests a computation later than that
// (docs/design/emulated-device.md).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "device/emulated_device.h"
#include "hoststore/catalogue.h"
#include "worker/executor/stage_executor.h"

namespace rp {

// The times and the output of a layer, for one microbatch unless a comment says otherwise.
struct EmulatedLayer {
  std::int64_t forward_ns = 0;  // also the time of a recompute
  std::int64_t backward_ns = 0;
  std::int64_t expansion_ns = 0;  // of quantised weights, once for each task
  TensorDesc output;              // also describes the output's gradient
};

// The time at which a computation could have begun, and the time during which it ran.
struct ComputeSpan {
  std::int64_t free_ns = 0;  // when the previous computation had ended
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

// Computes when computations run, in the time of a clock that the caller reads.
class ComputeClock {
 public:
  // Adds a computation of `length_ns` that needs the copies in `needs`. `now_ns` is when the host
  // requests it.
  ComputeSpan run(std::int64_t length_ns, const CopyTimes& needs, std::int64_t now_ns);

  // The end of the last computation.
  [[nodiscard]] std::int64_t end_ns() const { return end_ns_; }
  // Returns the times since the last call.
  [[nodiscard]] ComputeTimes take_times();

 private:
  std::int64_t end_ns_ = 0;
  std::int64_t length_ns_ = 0;  // of the last computation
  ComputeTimes times_;
};

class EmulatedStageExecutor : public StageExecutor {
 public:
  // Called for each computation of a microbatch: for the recompute of a backward stage, and for
  // everything else.
  using Observer = std::function<void(const StageTask&, int microbatch, bool is_recompute, const ComputeSpan&)>;

  // `layers` is indexed by the catalogue's layer number. Device and catalogue must outlive the
  // executor.
  EmulatedStageExecutor(std::vector<EmulatedLayer> layers, EmulatedDevice& device, const Catalogue& catalogue,
                        Observer observer = {});

  void begin(const StageTask& task) override;
  void recompute(const StageTask& task, int microbatch, const MicrobatchInputs& inputs) override;
  void run(const StageTask& task, int microbatch, const MicrobatchInputs& inputs, MicrobatchOutputs& outputs) override;
  void end(const StageTask& task, TaskTotals& totals) override;

 private:
  [[nodiscard]] const EmulatedLayer& layer(const Command& command, int number) const {
    return layers_[command.catalogue_layer(number).value()];
  }
  // Both return the later one of `needs` and the last copy of a block or of several blocks.
  [[nodiscard]] CopyTimes with_block(const CopyTimes& needs, const InputBlock& block);
  [[nodiscard]] CopyTimes with_inputs(const CopyTimes& needs, const MicrobatchInputs& inputs);
  void add_output(MicrobatchOutputs& outputs, const Command& command, BlockKind kind, int boundary) const;

  void compute(const StageTask& task, int microbatch, bool is_recompute, std::int64_t length_ns,
               const CopyTimes& needs);

  const std::vector<EmulatedLayer> layers_;
  EmulatedDevice& device_;
  const Catalogue& catalogue_;
  const Observer observer_;
  DeviceMemory outputs_;           // the addresses of the outputs
  std::int64_t expansion_ns_ = 0;  // of the task's weights, as long as nothing of the task is computed
  CopyTimes task_needs_;           // of the weights, and of the gradient buffer's last download
  ComputeClock clock_;
  bool is_on_time_ = false;  // true once wake_this_thread_on_time() was called in its thread
};

}  // namespace rp
