#include "scheduler/simulation/run_stages.h"

#include <algorithm>
#include <set>

namespace rp {

namespace {

class StageReader {
 public:
  StageReader(const RunWork& work, const std::vector<StageWork>& stages) : work_(work), stages_(stages) {
    for (const StageWork& stage : stages) {
      if (stage.kind != TaskKind::kBackward) continue;
      const LayerRange read = inputs_of(stage);
      for (int boundary = read.first; boundary < read.end; ++boundary) kept_.insert(boundary);
    }
  }

  [[nodiscard]] double bytes(int boundary) const { return work_.layers.empty() ? 0 : work_.layers[boundary].input; }
  // Returns true if a backward stage reads the boundary again.
  [[nodiscard]] bool is_kept(int boundary) const { return kept_.contains(boundary); }

  // Returns all reads of a stage except the gradient.
  [[nodiscard]] std::vector<StageRead> inputs(const StageWork& stage) const {
    std::vector<StageRead> reads;
    const LayerRange boundaries = inputs_of(stage);
    for (int boundary = boundaries.first; boundary < boundaries.end; ++boundary) {
      const int source = maker(boundary);
      if (reads.empty() || reads.back().source != source) reads.push_back({.source = source});
      reads.back().bytes += bytes(boundary);
    }
    return reads;
  }

 private:
  // Returns the boundaries that the stage reads from the host store.
  [[nodiscard]] LayerRange inputs_of(const StageWork& stage) const {
    const bool recomputes = stage.kind == TaskKind::kBackward;
    return recompute_inputs(stage.layers, recomputes ? work_.workload.recompute : RecomputeGrain::kStage);
  }
  [[nodiscard]] int maker(int boundary) const {
    for (std::size_t i = 0; i < stages_.size() && boundary > 0; ++i) {
      const LayerRange& layers = stages_[i].layers;
      if (stages_[i].kind == TaskKind::kForward && layers.first < boundary && boundary <= layers.end)
        return static_cast<int>(i);
    }
    return StageRead::kFromHost;
  }

  const RunWork& work_;
  const std::vector<StageWork>& stages_;
  std::set<int> kept_;
};

}  // namespace

std::vector<RunStage> run_stages(const RunWork& work, const std::vector<StageWork>& stages) {
  const StageReader reader(work, stages);
  std::vector<RunStage> result;
  for (const StageWork& stage : stages) {
    const LayerRange& layers = stage.layers;
    RunStage made{.work = stage, .reads = reader.inputs(stage), .trained_layers = {}};
    if (stage.kind == TaskKind::kForward) {
      for (int boundary = layers.first + 1; boundary <= layers.end; ++boundary) {
        if (boundary == layers.end || reader.is_kept(boundary)) made.output_bytes += reader.bytes(boundary);
      }
      // The batch itself is not counted, since the process that wrote it keeps it.
    } else {
      for (int layer = layers.end; layer-- > layers.first;) {
        if (is_trained(work, layer)) made.trained_layers.push_back(layer);
      }
      if (layers.first > work.workload.first_trained_layer) made.output_bytes = reader.bytes(layers.first);
    }
    const bool is_last_reader = stage.kind == TaskKind::kBackward || !reader.is_kept(layers.first);
    for (const StageRead& read : made.reads) {
      if (is_last_reader && read.source != StageRead::kFromHost) made.freed_bytes += read.bytes;
    }
    if (stage.kind == TaskKind::kBackward) {
      const StageRead gradient{.bytes = reader.bytes(layers.end), .source = static_cast<int>(result.size()) - 1};
      made.freed_bytes += gradient.bytes;
      made.reads.push_back(gradient);
    }
    made.freed_bytes *= work.workload.round_microbatches;
    result.push_back(std::move(made));
  }
  return result;
}

}  // namespace rp
