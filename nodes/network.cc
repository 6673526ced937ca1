#include "nodes/network.h"

namespace rp {

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
