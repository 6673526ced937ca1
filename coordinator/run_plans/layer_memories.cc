#include "coordinator/run_plans/layer_memories.h"

#include <algorithm>

namespace rp {

LayerMemories::LayerMemories(const Catalogue& catalogue, int pipeline) {
  const PipelineRecord& record = catalogue.pipelines()[pipeline];
  for (int layer = 0; layer < static_cast<int>(record.num_layers); ++layer) {
    LayerCost& cost = costs_.emplace_back();
    for (const UseId use : catalogue.uses_of(record.catalogue_layer(layer))) {
      const WeightGroupRecord& group = catalogue.weight_groups()[catalogue.uses()[use].group];
      cost.weight_bytes += group.device_bytes();
      if (group.is_trained == 0) continue;
      cost.gradient_bytes += group.device_bytes();
      cost.gradient_elements += group.num_elements;
    }
  }
}

bool LayerMemories::add(const RoundTable& table) {
  bool has_grown = false;
  const auto raise = [&](std::uint64_t& most, std::uint64_t bytes) {
    has_grown = has_grown || bytes > most;
    most = std::max(most, bytes);
  };
  for (std::size_t layer = 0; layer < costs_.size(); ++layer) {
    const LayerMemory& memory = table.layer_memory(static_cast<int>(layer));
    LayerCost& cost = costs_[layer];
    raise(cost.input_bytes, memory.input_bytes);
    raise(cost.output_bytes, memory.output_bytes);
    raise(cost.saved_bytes, memory.saved_bytes);
    raise(cost.expanded_bytes, memory.expanded_bytes);
    raise(cost.forward_workspace_bytes, memory.forward_workspace_bytes);
    raise(cost.backward_workspace_bytes, std::max(memory.recompute_workspace_bytes, memory.backward_workspace_bytes));
  }
  return has_grown;
}

}  // namespace rp
