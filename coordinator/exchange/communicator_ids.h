// coordinator/exchange/communicator_ids.h
// Passes the ids of NCCL's communicators from the workers of the first node to those of the others,
// down a tree (nodes/node_tree.h).
//
// Owned by the Coordinator. A thread of its own waits for the ids on the first node. The network
// calls nothing of it after it has ended. The Store must outlive it.
#pragma once

#include <array>
#include <atomic>
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

 private:
  using Ids = std::vector<decltype(CommunicatorId::bytes)>;  // by worker

  void wait_for_workers();
  void send();
  void publish();

  Store& store_;
  NodeNetwork& network_;
  Ids ids_;
  std::atomic<bool> stops_{false};
  std::thread thread_;
};

}  // namespace rp
