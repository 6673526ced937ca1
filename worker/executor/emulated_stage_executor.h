// worker/executor/emulated_stage_executor.h
// Runs stages in emulated time on a EmulatedDevice: it describes their outputs, takes the time of their layers, and
// touches no data.
//
// Compute is one engine. A microbatch begins when the one before ended and its weights and inputs were there, in the
// model's time, and run() returns when it ended. A GPU has work queued: a microbatch that needs an upload which is
// under way is launched behind it, and one whose inputs are there is launched while the one before runs. So a delay of
// the host counts where it asks for a computation later than that (docs/design/emulated-device.md).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "device/emulated_device.h"
#include "hoststore/catalogue.h"
#include "worker/executor/stage_executor.h"

namespace rp {

// A layer for one microbatch.
struct EmulatedLayer {
  std::int64_t forward_ns = 0;  // of a recompute, too
  std::int64_t backward_ns = 0;
  TensorDesc output;  // and its gradient
};

// When a computation could have begun, and when it ran.
struct ComputeSpan {
  std::int64_t free_ns = 0;   // the one before had ended
  std::int64_t needs_ns = 0;  // what it needs was there
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

// When computations run, in the time of a clock that the caller reads.
class ComputeClock {
 public:
  // A computation of `length_ns` that needs what `needs` says. `now_ns`: when the host asks for it.
  ComputeSpan run(std::int64_t length_ns, const CopyTimes& needs, std::int64_t now_ns);

  // Of the last one.
  [[nodiscard]] std::int64_t end_ns() const { return end_ns_; }
  // Since the last call.
  [[nodiscard]] ComputeTimes take_times();

 private:
  std::int64_t end_ns_ = 0;
  std::int64_t length_ns_ = 0;  // of the last one
  ComputeTimes times_;
};

class EmulatedStageExecutor : public StageExecutor {
 public:
  // Told of each microbatch: of a backward stage's recompute, and of all else.
  using Observer = std::function<void(const StageTask&, int microbatch, bool is_recompute, const ComputeSpan&)>;

  // `layers`: by the catalogue's number. Device and catalogue must outlive it.
  EmulatedStageExecutor(std::vector<EmulatedLayer> layers, EmulatedDevice& device, const Catalogue& catalogue,
                        Observer observer = {});

  void begin(const StageTask& task) override;
  void recompute(const StageTask& task, int microbatch, const MicrobatchInputs& inputs) override;
  void run(const StageTask& task, int microbatch, const MicrobatchInputs& inputs, MicrobatchOutputs& outputs) override;
  void end(const StageTask& task, TaskTotals& totals) override;

 private:
  [[nodiscard]] const EmulatedLayer& layer(const Command& command, int number) const {
    return layers_[static_cast<std::size_t>(static_cast<int>(command.layer_base) + number)];
  }
  // The later of `needs` and the last copy of a block.
  [[nodiscard]] CopyTimes with_block(const CopyTimes& needs, const InputBlock& block);
  [[nodiscard]] CopyTimes with_inputs(const CopyTimes& needs, const MicrobatchInputs& inputs);
  void add_output(MicrobatchOutputs& outputs, const Command& command, BlockKind kind, int boundary) const;

  void compute(const StageTask& task, int microbatch, bool is_recompute, std::int64_t length_ns,
               const CopyTimes& needs);

  const std::vector<EmulatedLayer> layers_;
  EmulatedDevice& device_;
  const Catalogue& catalogue_;
  const Observer observer_;
  DeviceMemory outputs_;  // where outputs would be
  CopyTimes task_needs_;  // weights, and the gradient buffer's last download
  ComputeClock clock_;
  bool is_on_time_ = false;  // its thread wakes when it must
};

}  // namespace rp
