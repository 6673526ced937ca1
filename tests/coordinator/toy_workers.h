// tests/coordinator/toy_workers.h
// The workers of a toy run: threads over the test's mapping of the store, threads with one mapping each, or processes.
// They may die or stop at planned operations of their devices, and be replaced or come back later.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
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
  // Notes that the coordinator has committed a task. For any thread.
  void count_commit() { ++num_commits_; }

 private:
  struct Report {
    // 'd': died as planned; 's': has stopped; 'x': failed otherwise. In the other direction 'r': start; 'q': quit.
    char kind = 0;
    int worker = -1;
  };
  // Serves as this life of a worker, counted from 0. `die` does not return.
  using Die = std::function<void(const Death&)>;
  void serve(Store& store, int worker, int life, const Die& die);
  void start(int worker);
  void start_thread(int worker);
  void run_thread(int worker, int life);
  // Blocks a thread of a worker that is a thread until the watch ends the worker.
  void stop_thread(int worker);
  void end_stopped(int worker);
  // Starts worker processes, reports their deaths and starts replacements, in a process of its own, which has one
  // thread.
  [[noreturn]] void run_launcher(const UniqueFd& socket);
  [[nodiscard]] pid_t start_process(int worker, int life);
  void follow(Coordinator& coordinator);
  void handle(const Report& report, Coordinator& coordinator);
  void bring_back_workers();
  [[nodiscard]] std::optional<Report> next_report();

  Store& store_;
  const RunSettings settings_;
  const ToyConfig config_;
  std::vector<std::unique_ptr<Store>> views_;  // by worker
  std::vector<int> lives_;                     // by worker: how many times it was started
  Mutex mutex_;
  CondVar changed_;
  std::set<int> stopped_ RP_GUARDED_BY(mutex_);  // workers that wait for their ends
  std::vector<Report> reports_ RP_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ RP_GUARDED_BY(mutex_);
  UniqueFd socket_;  // to the launcher, if workers are processes
  pid_t launcher_ = -1;
  std::atomic<bool> ends_{false};
  std::atomic<std::int64_t> num_commits_{0};

  // Used by the watch.
  struct Away {
    int worker = 0;
    std::int64_t comes_back_at = 0;  // a number of commits
  };
  int replacements_left_ = 0;
  int num_present_ = 0;
  std::deque<Away> away_;
  std::thread watch_;
};

// Watches the workers. Ends the watch before the coordinator ends, also after an exception.
class WorkerWatch {
 public:
  WorkerWatch(Workers& workers, Coordinator& coordinator) : workers_(workers) { workers.watch(coordinator); }
  ~WorkerWatch() { workers_.unwatch(); }
  WorkerWatch(const WorkerWatch&) = delete;
  WorkerWatch& operator=(const WorkerWatch&) = delete;

 private:
  Workers& workers_;
};

}  // namespace rp::test
