// coordinator/exchange/communicator_ids.h
// Passes the ids of NCCL's communicators from the workers of the first node to those of the others,
// down a tree (nodes/node_tree.h).
//
// Owned by the Coordinator. A thread of its own waits for the ids on the first node. The network
// calls nothing of it after it has ended. The Store must outlive it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "hoststore/store.h"
#include "nodes/network.h"

namespace rp {

class CommunicatorIds {
 public:
  CommunicatorIds(Store& store, NodeNetwork& network);
  ~CommunicatorIds() { stop(); }
  CommunicatorIds(const CommunicatorIds&) = delete;
  CommunicatorIds& operator=(const CommunicatorIds&) = delete;

  // Ends the thread. Does nothing if it has ended.
  void stop();
  // Must be called before the network ends, unless the run has failed: the other nodes wait for the ids, also if not
  // all workers have made theirs. REQUIRES: no worker will connect any more.
  void finish();

 private:
  struct Id {
    decltype(CommunicatorId::bytes) bytes{};
    std::int32_t is_known = 0;
  };

  void wait_for_workers();
  void send();
  void publish();

  Store& store_;
  NodeNetwork& network_;
  std::vector<Id> ids_;    // by worker
  bool has_sent_ = false;  // of the first node; used by the thread, and once it has ended
  std::atomic<bool> stops_{false};
  std::thread thread_;
};

}  // namespace rp
