// tests/coordinator/toy_workers.h
// The workers of a toy run: threads over the test's mapping of the store, threads with one mapping each, or processes.
// They may die at planned operations of their devices, and be replaced.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "common/system/fd.h"
#include "coordinator/coordinator.h"
#include "tests/coordinator/toy_run.h"

namespace rp::test {

// Thrown by a device whose worker is a thread that is to die.
struct DeathOfWorker {};

// Starts, watches and ends the workers of a run. They end by themselves when the coordinator ends them.
class Workers {
 public:
  // Forks if the workers are processes, so it must be called before any thread is started. The
  // store must outlive it.
  Workers(Store& store, const RunSettings& settings, const ToyConfig& config);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Reports deaths to the coordinator, and starts replacements as the settings say, until unwatch().
  void watch(Coordinator& coordinator);
  void unwatch();

 private:
  struct Report {
    char kind = 0;  // 'd': died as planned; 'x': failed otherwise; in the other direction 'r': replace, 'q': quit
    int worker = -1;
  };
  // Serves as this life of a worker, counted from 0. Returns false if it failed unexpectedly.
  void serve(Store& store, int worker, int life, const std::function<void()>& die);
  void start_thread(int worker);
  void run_thread(int worker, int life);
  // Starts worker processes, reports their deaths and starts replacements, in a process of its own, which has one
  // thread.
  [[noreturn]] void run_launcher(const UniqueFd& socket);
  [[nodiscard]] pid_t start_process(int worker, int life);
  void follow(Coordinator& coordinator);
  [[nodiscard]] std::optional<Report> next_report();

  Store& store_;
  const RunSettings settings_;
  const ToyConfig config_;
  std::vector<std::unique_ptr<Store>> views_;  // by worker
  std::vector<int> lives_;                     // by worker: how many times it was started
  Mutex mutex_;
  std::vector<Report> reports_ RP_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ RP_GUARDED_BY(mutex_);
  UniqueFd socket_;  // to the launcher, if workers are processes
  pid_t launcher_ = -1;
  std::atomic<bool> ends_{false};
  std::thread watch_;
};

}  // namespace rp::test
