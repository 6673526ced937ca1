// scheduler/simulation/simulated_links.h
// Simulates everything that moves bytes on a machine in a simulated run: both directions of each
// GPU's link, and one update at a time in host memory. PCIe roots and host memory are shared
// fairly. Virtual time, in ms.
#pragma once

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

  // Starts what can start at `now`. Returns the time at which the next copy or update ends or is
  // interrupted.
  [[nodiscard]] double next_event(double now);

  struct End {
    int gpu = 0;
    CopyQueue::Stopped copy;
  };
  // Advances from the time of the last next_event() to `now`, which is not later than the time that
  // call returned. Returns the copies that ended or were interrupted; valid until the next call.
  const std::vector<End>& advance(double now);
  // True if the update ended in the last advance().
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
  bool is_shared_;       // some resource has a limited capacity
  bool changed_ = true;  // true if the set of running copies and updates has changed since share_rates()
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
