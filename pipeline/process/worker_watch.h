// pipeline/process/worker_watch.h
// Follows the worker processes of a run in the coordinator's process: waits until all of them serve, then reports each
// one that ends unexpectedly: as the end of the run, or as a loss after which the run goes on.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hoststore/records/wait_record.h"
#include "hoststore/store.h"
#include "launcher/process/channel.h"
#include "pipeline/process/lifecycles.h"
#include "roundpipe/error.h"

namespace rp {

// Thrown when a worker has ended. rp-launch itself reports this, so the coordinator ends without
// another message.
class WorkerGone : public Error {
 public:
  using Error::Error;
};

// Owned by the Session, which calls all methods in one thread. Nothing else may receive from the channel, but other
// threads may send on it.
class WorkerWatch {
 public:
  // What happens while the run goes on.
  struct Handlers {
    std::function<void(int)> lose;  // a worker has ended
    std::function<void(SlotNumber)>
        set_aside;  // a task has ended several workers, of which the last is not reported yet
  };
  // Channel and store must outlive this.
  WorkerWatch(Channel& channel, Store& store, Handlers handlers)
      : channel_(channel), store_(store), handlers_(std::move(handlers)), workers_(store.num_workers()) {}

  // Blocks until every worker serves that will; rp-launch ends one that does not start in time. `waits` shows the wait.
  // Throws WorkerGone, Interrupted, or rp::Error (kLauncherFailed).
  void wait_until_serving(WaitRecord waits);

  // Starts the thread that calls `fail` when a worker ends unexpectedly and the run ends. REQUIRES: all workers serve.
  void start(std::function<void(std::exception_ptr)> fail);
  // Workers may end from now on.
  void expect_ends() { ends_are_expected_.store(true); }
  // Ends the thread, if it was started. REQUIRES: expect_ends() was called.
  void stop();

 private:
  void run();
  // Notes the end of a worker, and returns what to throw.
  [[nodiscard]] WorkerGone gone(int worker, const std::string& how);
  // Handles a message after which the run goes on.
  void handle(const Message& message);

  Channel& channel_;
  Store& store_;
  const Handlers handlers_;
  std::vector<Lifecycle<kWorkerLifecycle>> workers_;  // used by the thread once it is started
  std::function<void(std::exception_ptr)> fail_;
  std::atomic<bool> ends_are_expected_{false};  // read by the thread
  std::thread thread_;
};

}  // namespace rp
