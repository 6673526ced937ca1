// coordinator/rounds/free_sender.h
// Tells each worker which blocks of its arena nobody reads any more.
//
// A worker looks into its ring only when it needs memory: what does not fit yet is kept here, per worker.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "hoststore/store.h"

namespace rp {

class FreeSender {
 public:
  explicit FreeSender(Store& store) : late_(static_cast<std::size_t>(store.num_workers())) {
    for (int worker = 0; worker < store.num_workers(); ++worker) rings_.push_back(store.free_writer(worker));
  }

  void send(std::uint64_t worker, const FreeRecord& record) {
    late_[worker].push_back(record);
    flush(worker);
  }

  // Sends what is late, as far as the rings have places. True if all is sent.
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
