// scheduler/simulation/simulated_links.h
// Everything that moves bytes on a machine in a simulated run: both directions of each GPU's link, and one update at a
// time in host memory, with shared roots and memory shared fairly. Virtual time, ms.
#pragma once

#include <deque>
#include <vector>

#include "scheduler/simulation/copy_queue.h"
#include "scheduler/simulation/fair_share.h"
#include "scheduler/simulation/machine.h"

namespace rp {

class SimulatedLinks {
 public:
  SimulatedLinks(const Machine& machine, const TransferPolicy& policy, int num_gpus);

  void add(int gpu, const SimulatedCopy& copy);
  // REQUIRES: !is_updating().
  void start_update(double bytes);
  [[nodiscard]] bool is_updating() const { return is_updating_; }

  // Starts what can start at `now`. Returns when the next copy or update ends or pauses.
  [[nodiscard]] double next_event(double now);

  struct End {
    int gpu = 0;
    CopyQueue::Stopped copy;
  };
  // Goes from the moment of the last next_event() to `now`, which is not behind what that returned. Copies that ended
  // or paused, until the next call.
  const std::vector<End>& advance(double now);
  // Whether the update ended with the last advance().
  [[nodiscard]] bool update_has_ended() const { return update_has_ended_; }

 private:
  [[nodiscard]] CopyQueue& queue(int gpu, bool upload) {
    return queues_[static_cast<std::size_t>(gpu) * 2 + (upload ? 0 : 1)];
  }
  [[nodiscard]] bool bulk_waits(std::size_t queue) const;
  [[nodiscard]] Flow flow_of(std::size_t queue) const;
  void share_rates();

  const Machine machine_;
  const TransferPolicy policy_;
  const int num_gpus_;
  const int num_roots_;
  std::vector<CopyQueue> queues_;  // by GPU: upload, download
  FairShare share_;
  bool is_shared_;       // any resource can be too narrow
  bool changed_ = true;  // what runs, since share_rates()
  bool is_updating_ = false;
  bool update_has_ended_ = false;
  double update_bytes_ = 0;
  double update_rate_ = 0;
  double now_ = 0;
  double update_end_ = 0;
  std::vector<double> ends_;       // by queue
  std::vector<std::size_t> used_;  // queues that are not empty, in ascending order
  std::vector<End> ended_;
  std::vector<Flow> flows_;
  std::vector<double> rates_;
};

}  // namespace rp
