// scheduler/layer_times.h
// What the layers of a model take, learnt from its rounds.
#pragma once

#include <vector>

#include "roundpipe/plan.h"

namespace rp {

// Over rounds: the first record of each phase is dropped, the second taken, later ones smoothed.
class LayerTimes {
 public:
  explicit LayerTimes(int num_layers) : times_(static_cast<std::size_t>(num_layers)) {}

  // Adds what one round measured, by layer. Where a phase of a layer is 0 it did not run.
  void add(const std::vector<LayerTiming>& round);

  // How many rounds told of a layer's forward, and of a backward.
  [[nodiscard]] int num_forwards() const { return num_forwards_; }
  [[nodiscard]] int num_backwards() const { return num_backwards_; }

  [[nodiscard]] const std::vector<LayerTiming>& times() const { return times_; }

 private:
  std::vector<LayerTiming> times_;
  int num_forwards_ = 0;
  int num_backwards_ = 0;
};

}  // namespace rp
