// coordinator/rounds/free_sender.h
// Sends each worker the blocks of its arena that no process reads any more.
//
// A worker looks into its ring only when it needs memory, so the ring may be full. Blocks that do
// not fit yet are kept here, by worker. At the beginning of an epoch each worker gets a list of the blocks that are in
// use instead, so nothing is sent while the epoch changes.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "hoststore/store.h"

namespace rp {

class FreeSender {
 public:
  explicit FreeSender(Store& store) : to_(store.num_workers(), {.takes_part = true}) {
    for (int worker = 0; worker < store.num_workers(); ++worker) to_[worker].ring = store.free_writer(worker);
  }

  void send(std::uint64_t worker, std::uint64_t offset) {
    if (!to_[worker].takes_part) return;
    to_[worker].late.push_back({.epoch = epoch_, .offset = offset});
    flush(to_[worker]);
  }

  // Sends the blocks that were kept, while the rings have free entries. Returns true if all are
  // sent.
  bool flush() {
    bool all_sent = true;
    for (Receiver& worker : to_) all_sent &= flush(worker);
    return all_sent;
  }

  // Ends the present epoch: nothing is sent until begin_epoch().
  void end_epoch() {
    for (Receiver& worker : to_) {
      worker.takes_part = false;
      worker.late.clear();
    }
  }
  // Begins an epoch with these workers. REQUIRES: no thread of a worker reads its ring.
  void begin_epoch(Epoch epoch, const std::vector<int>& members) {
    epoch_ = epoch;
    for (const int worker : members) {
      to_[worker].takes_part = true;
      to_[worker].ring.discard();
    }
  }

 private:
  struct Receiver {
    RingWriter<FreeRecord> ring{};
    std::deque<FreeRecord> late{};
    bool takes_part = false;
  };

  static bool flush(Receiver& worker) {
    while (!worker.late.empty() && worker.ring.try_push_quietly(worker.late.front())) worker.late.pop_front();
    return worker.late.empty();
  }

  Epoch epoch_{};
  std::vector<Receiver> to_;
};

}  // namespace rp
