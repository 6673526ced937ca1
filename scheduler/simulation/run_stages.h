// scheduler/simulation/run_stages.h
// What the slots of a round read, write and wait for in a simulated run: the same for every round.
#pragma once

#include <cstddef>
#include <vector>

#include "scheduler/round_schedule.h"
#include "scheduler/simulation/machine.h"

namespace rp {

// What a stage reads of a microbatch and one stage of the round makes.
struct StageRead {
  static constexpr int kFromHost = -1;
  double bytes = 0;
  int source = kFromHost;  // the stage; kFromHost: the batch
};

struct RunStage {
  StageWork work;
  // In the order in which they are fetched: the stage's input; recomputed layer by layer, the inputs of all its layers,
  // those that one stage made as one copy, which takes as long as theirs. Backward: the gradient is the last one, of
  // the stage before.
  std::vector<StageRead> reads;
  double output_bytes = 0;  // of a microbatch
  // Of a round: bytes in the host store that nobody reads after this stage.
  double freed_bytes = 0;
  std::vector<int> trained_layers;  // deepest first; empty for a forward

  [[nodiscard]] bool is_backward() const { return work.kind == TaskKind::kBackward; }
  // What a forward or a recompute needs: all reads but the gradient.
  [[nodiscard]] std::size_t num_inputs() const { return reads.size() - (is_backward() ? 1 : 0); }
};

// Whether a step updates the layer. Without sizes all layers that have a backward are trained, in no time.
[[nodiscard]] inline bool is_trained(const RunWork& work, int layer) {
  return layer >= work.workload.first_trained_layer &&
         (work.layers.empty() || work.layers[static_cast<std::size_t>(layer)].gradient > 0);
}

[[nodiscard]] std::vector<RunStage> run_stages(const RunWork& work, const std::vector<StageWork>& stages);

}  // namespace rp
