// pipeline/master_gathering.h
// Collects the masters of parameters on the first node of a run, each part from its owner.
#pragma once

#include <ATen/ATen.h>

#include "hoststore/store.h"
#include "nodes/pending_messages.h"

namespace rp {

class MasterGathering {
 public:
  MasterGathering(NodeNetwork& network, int pipeline);

  // Begins to move the master of a parameter, which is fp32. On the first node, returns the tensor
  // that it will be in. REQUIRES: all nodes make the same calls in the same order; nothing changes
  // the master before wait() returns.
  at::Tensor add(Store& store, const TensorRecord& parameter, Version version);

  // Blocks until all of them are there, or sent. Throws the error of NodeNetwork::report_failure().
  void wait() { pending_.wait(); }

 private:
  NodeNetwork& network_;
  const NodeMessageTag tag_;
  PendingMessages pending_;
};

}  // namespace rp
