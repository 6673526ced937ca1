// coordinator/run_plans/layer_memories.h
// Keeps the device memory that each layer of a pipeline needs: weights and gradients by the
// catalogue, activations and workspace as its rounds measured them, for the largest microbatch so
// far.
#pragma once

#include <vector>

#include "hoststore/catalogue.h"
#include "hoststore/round_table.h"
#include "scheduler/layer_cost.h"

namespace rp {

class LayerMemories {
 public:
  LayerMemories(const Catalogue& catalogue, int pipeline);

  // Adds the measurements of a round. Returns true if a value has grown.
  bool add(const RoundTable& table);

  // Returns the sizes in memory by layer; the other fields of LayerCost are not set.
  [[nodiscard]] const std::vector<LayerCost>& costs() const { return costs_; }

 private:
  std::vector<LayerCost> costs_;  // by layer
};

}  // namespace rp
