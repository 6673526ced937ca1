#include "scheduler/run_stages.h"

#include <algorithm>
#include <set>

#include "common/check.h"

namespace rp {

std::vector<RunStage> run_stages(const RunWork& work, const std::vector<StageWork>& stages) {
  const auto input_bytes = [&work](int layer) { return work.layers.empty() ? 0 : work.layers[static_cast<std::size_t>(layer)].input; };
  std::set<int> kept;  // boundaries that a backward reads again
  for (const StageWork& stage : stages) {
    if (stage.kind == TaskKind::kBackward) kept.insert(stage.layers.first);
  }
  const auto maker = [&stages](int boundary) {
    for (std::size_t i = 0; i < stages.size() && boundary > 0; ++i) {
      const LayerRange& layers = stages[i].layers;
      if (stages[i].kind == TaskKind::kForward && layers.first < boundary && boundary <= layers.end) return static_cast<int>(i);
    }
    return RunStage::kFromHost;
  };
  std::vector<RunStage> result;
  for (const StageWork& stage : stages) {
    const LayerRange& layers = stage.layers;
    RunStage made{.work = stage, .input_bytes = input_bytes(layers.first), .input_stage = maker(layers.first), .trained_layers = {}};
    if (stage.kind == TaskKind::kForward) {
      for (int boundary = layers.first + 1; boundary <= layers.end; ++boundary) {
        if (boundary == layers.end || kept.count(boundary) > 0) made.output_bytes += input_bytes(boundary);
      }
      // The batch itself is not counted: who wrote it keeps it.
    } else {
      for (int layer = layers.end; layer-- > layers.first;) {
        if (is_trained(work, layer)) made.trained_layers.push_back(layer);
      }
      if (layers.first > work.workload.first_trained_layer) made.output_bytes = input_bytes(layers.first);
    }
    if (stage.kind == TaskKind::kBackward) made.gradient_input_bytes = input_bytes(layers.end);
    const bool is_last_reader = stage.kind == TaskKind::kBackward || kept.count(layers.first) == 0;
    made.freed_bytes = made.gradient_input_bytes + (is_last_reader && layers.first > 0 ? made.input_bytes : 0);
    made.freed_bytes *= work.workload.round_microbatches;
    result.push_back(std::move(made));
  }
  return result;
}

}  // namespace rp
