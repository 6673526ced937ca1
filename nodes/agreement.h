// nodes/agreement.h
// Lets the nodes of a run make the same decisions: the first node decides, and the others follow.
//
// A decision goes down a tree (node_tree.h). Each node passes it on as soon as it arrives, not when its program asks
// for it, so no node waits for the program of another but the first. Signals go up the same tree.
//
// Owned by the Session of a coordinator. All nodes must make the same calls in the same order, from one thread. A call
// blocks until the first node has made it; the first node does not wait.
#pragma once

#include <memory>
#include <string>

#include "nodes/network.h"

namespace rp {

class NodeAgreement {
 public:
  // The network must outlive this object.
  explicit NodeAgreement(NodeNetwork& network);

  // Returns `own` of the first node. Throws the error of
  // NodeNetwork::report_failure().
  [[nodiscard]] std::string from_first(const std::string& own);

  // Returns the signal for which all nodes end now, or 0. A signal that only another node has
  // received is passed on to the first one. `own`: that of this node, or 0. Throws the error of
  // NodeNetwork::report_failure().
  //
  // The first node decides in the first call with `may_end` after as many calls as there are nodes, and the other
  // calls return 0. A step has at least one round for each node, so this is about once a step, however many nodes
  // there are. `may_end`: all nodes can end before the round of this call; the same on all nodes.
  [[nodiscard]] int stop_signal(int own, bool may_end = true);

  // Must be called before the network ends, unless the run has failed.
  void finish();

 private:
  // Used by functions that the network calls, also after this object has ended.
  class Shared;
  const std::shared_ptr<Shared> shared_;
  const NodePlace place_;
  int num_calls_;  // of stop_signal() since the last decision
};

}  // namespace rp
