// common/system/blocked_signals.h
// Keeps signals away from this thread, and from threads that it creates meanwhile.
#pragma once

#include <csignal>

namespace rp {

// Blocks all signals for this thread in its scope. A thread inherits the mask of the thread that creates it, so a
// thread that is created in this scope never takes a signal that the process handles elsewhere, nor dies of one.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace rp
