// coordinator/rounds/free_sender.h
// Sends each worker the blocks of its arena that no process reads any more.
//
// A worker looks into its ring only when it needs memory, so the ring may be full. Blocks that do
// not fit yet are kept here, by worker.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "hoststore/store.h"

namespace rp {

class FreeSender {
 public:
  explicit FreeSender(Store& store) : late_(store.num_workers()) {
    for (int worker = 0; worker < store.num_workers(); ++worker) rings_.push_back(store.free_writer(worker));
  }

  void send(std::uint64_t worker, const FreeRecord& record) {
    late_[worker].push_back(record);
    flush(worker);
  }

  // Sends the blocks that were kept, while the rings have free entries. Returns true if all are
  // sent.
  bool flush() {
    bool all_sent = true;
    for (std::uint64_t worker = 0; worker < late_.size(); ++worker) all_sent &= flush(worker);
    return all_sent;
  }

 private:
  bool flush(std::uint64_t worker) {
    std::deque<FreeRecord>& late = late_[worker];
    while (!late.empty() && rings_[worker].try_push_quietly(late.front())) late.pop_front();
    return late.empty();
  }

  std::vector<RingWriter<FreeRecord>> rings_;
  std::vector<std::deque<FreeRecord>> late_;
};

}  // namespace rp
