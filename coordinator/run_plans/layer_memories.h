// coordinator/run_plans/layer_memories.h
// What the layers of a pipeline take of a worker's device: weights and gradients by the catalogue, activations and
// workspace as its rounds measured them, for the largest microbatch so far.
#pragma once

#include <vector>

#include "hoststore/catalogue.h"
#include "hoststore/round_table.h"
#include "scheduler/layer_cost.h"

namespace rp {

class LayerMemories {
 public:
  LayerMemories(const Catalogue& catalogue, int pipeline);

  // What a round measured. True if a figure has grown.
  bool add(const RoundTable& table);

  // Their sizes in memory; nothing else is filled in.
  [[nodiscard]] const std::vector<LayerCost>& costs() const { return costs_; }

 private:
  std::vector<LayerCost> costs_;  // by layer
};

}  // namespace rp
