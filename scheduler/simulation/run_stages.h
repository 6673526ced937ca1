// scheduler/simulation/run_stages.h
// Computes what each slot of a round reads, writes and waits for in a simulated run. It is the same
// for every round.
#pragma once

#include <cstddef>
#include <vector>

#include "scheduler/round_schedule.h"
#include "scheduler/simulation/machine.h"

namespace rp {

// Data of one microbatch that a stage reads and that one stage of the round produces, or the batch.
struct StageRead {
  static constexpr int kFromHost = -1;
  double bytes = 0;
  int source = kFromHost;  // the stage that produces it; kFromHost: the batch
};

struct RunStage {
  StageWork work;
  // In the order in which they are fetched. First the stage's input; with recompute by layer, the
  // inputs of all its layers, where those from the same stage are one copy, which takes as long as
  // several. Backward stages read the gradient from the preceding stage last.
  std::vector<StageRead> reads;
  double output_bytes = 0;  // of one microbatch
  // Bytes of a round in the host store that no stage reads after this one.
  double freed_bytes = 0;
  std::vector<int> trained_layers;  // deepest first; empty for forward stages

  [[nodiscard]] bool is_backward() const { return work.kind == TaskKind::kBackward; }
  // The number of reads that a forward or a recompute needs: all except the gradient.
  [[nodiscard]] std::size_t num_inputs() const { return reads.size() - (is_backward() ? 1 : 0); }
};

// Returns true if a step updates the layer. Without sizes, all layers that have a backward are
// trained, and their updates take no time.
[[nodiscard]] inline bool is_trained(const RunWork& work, int layer) {
  return layer >= work.workload.first_trained_layer && (work.layers.empty() || work.layers[layer].gradient > 0);
}

[[nodiscard]] std::vector<RunStage> run_stages(const RunWork& work, const std::vector<StageWork>& stages);

}  // namespace rp
