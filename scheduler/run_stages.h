// scheduler/run_stages.h
// What the slots of a round read, write and wait for in a simulated run: the same for every round.
#pragma once

#include <vector>

#include "scheduler/machine.h"
#include "scheduler/round_schedule.h"

namespace rp {

struct RunStage {
  static constexpr int kFromHost = -1;
  StageWork work;
  // Of a microbatch: what a forward or recompute reads, and which stage of the round makes it; kFromHost: the batch.
  double input_bytes = 0;
  int input_stage = kFromHost;
  // Backward: the gradient comes from the stage before.
  double gradient_input_bytes = 0;
  double output_bytes = 0;  // of a microbatch
  // Of a round: bytes in the host store that nobody reads after this stage.
  double freed_bytes = 0;
  std::vector<int> trained_layers;  // deepest first; empty for a forward

  [[nodiscard]] bool is_backward() const { return work.kind == TaskKind::kBackward; }
};

// Whether a step updates the layer. Without sizes all layers that have a backward are trained, in no time.
[[nodiscard]] inline bool is_trained(const RunWork& work, int layer) {
  return layer >= work.workload.first_trained_layer && (work.layers.empty() || work.layers[static_cast<std::size_t>(layer)].gradient > 0);
}

[[nodiscard]] std::vector<RunStage> run_stages(const RunWork& work, const std::vector<StageWork>& stages);

}  // namespace rp
