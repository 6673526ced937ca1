// nodes/pending_messages.h
// Waits for messages that are on their way.
//
// Copies share one count. The network may call their functions at any time, also when nothing waits
// any more. For any thread.
#pragma once

#include <exception>
#include <memory>
#include <utility>

#include "common/mutex.h"
#include "nodes/network.h"

namespace rp {

class PendingMessages {
 public:
  // Counts one more message. Returns the function to call when it is complete.
  [[nodiscard]] NodeNetwork::Done add() {
    MutexLock lock(state_->mutex);
    ++state_->num;
    return [state = state_] {
      MutexLock lock_of_network(state->mutex);
      --state->num;
      state->changed.notify_all();
    };
  }

  // Makes all waits, present and later, throw `error`. The first call counts.
  void fail(std::exception_ptr error) {
    MutexLock lock(state_->mutex);
    if (!state_->error) state_->error = std::move(error);
    state_->changed.notify_all();
  }

  // Blocks until all messages are complete. Throws the error of fail().
  void wait() {
    MutexLock lock(state_->mutex);
    while (state_->num > 0 && !state_->error) state_->changed.wait(state_->mutex);
    if (state_->error) std::rethrow_exception(state_->error);
  }

 private:
  struct State {
    Mutex mutex;
    CondVar changed;
    int num RP_GUARDED_BY(mutex) = 0;
    std::exception_ptr error RP_GUARDED_BY(mutex);
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace rp
