// scheduler/layer_times.h
// LayerTimes: the measured times of a model's layers, smoothed over rounds.
#pragma once

#include <vector>

#include "roundpipe/plan.h"

namespace rp {

// Keeps one time for each phase of each layer. The first record is used until the second one
// replaces it; later records are smoothed.
class LayerTimes {
 public:
  explicit LayerTimes(int num_layers) : times_(num_layers) {}

  // Adds the measurements of one round, by layer. A phase of a layer that is 0 did not run.
  void add(const std::vector<LayerTiming>& round);

  // The numbers of rounds that measured a forward, and a backward, of any layer.
  [[nodiscard]] int num_forwards() const { return num_forwards_; }
  [[nodiscard]] int num_backwards() const { return num_backwards_; }

  [[nodiscard]] const std::vector<LayerTiming>& times() const { return times_; }

 private:
  std::vector<LayerTiming> times_;
  int num_forwards_ = 0;
  int num_backwards_ = 0;
};

}  // namespace rp
