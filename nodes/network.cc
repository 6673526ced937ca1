#include "nodes/network.h"

namespace rp {

const char* node_message_name(NodeMessageKind kind) {
  switch (kind) {
    case NodeMessageKind::kComparison: return "comparison";
    case NodeMessageKind::kDecision: return "decision";
    case NodeMessageKind::kGradient: return "gradient";
    case NodeMessageKind::kWeights: return "weights";
    case NodeMessageKind::kSquares: return "sums of squares";
    case NodeMessageKind::kSaved: return "checksum of a saved state";
    case NodeMessageKind::kMasters: return "masters";
    case NodeMessageKind::kLosses: return "losses";
  }
  return "";
}

void NodeNetwork::add_failure_handler(const std::function<void(std::exception_ptr)>& handler) {
  std::exception_ptr failure;
  {
    MutexLock lock(failure_mutex_);
    failure = failure_;
    failure_handlers_.push_back(handler);
  }
  if (failure) handler(failure);
}

void NodeNetwork::report_failure(const std::exception_ptr& error) {
  std::vector<std::function<void(std::exception_ptr)>> handlers;
  {
    MutexLock lock(failure_mutex_);
    if (failure_) return;
    failure_ = error;
    handlers = failure_handlers_;
  }
  for (const auto& handler : handlers) handler(error);
}

}  // namespace rp
