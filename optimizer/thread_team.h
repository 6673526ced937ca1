// optimizer/thread_team.h
// A few threads that work through the chunks of one pass over memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "common/mutex.h"

namespace rp {

// A team of `num_threads` threads: the caller of run(), and num_threads - 1 threads of its own,
// which are named NAME-1, NAME-2, … and joined by the destructor. The code that updates weights
// creates its team once. A team of one has no threads of its own. Between two runs the threads
// sleep.
//
// Contract: one run() at a time, from any thread. Chunks are assigned to threads by chance, so the
// work of a chunk must not depend on its thread.
class ThreadTeam {
 public:
  // REQUIRES: num_threads >= 1. `name` has at most 10 characters (the kernel cuts thread names at 15).
  explicit ThreadTeam(int num_threads, const std::string& name = "optimizer");
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  [[nodiscard]] int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls work(chunk), or work(chunk, thread), once for every chunk in [0, num_chunks), spread over the team; `thread`
  // is the thread's number, below num_threads(). Returns when all chunks are finished; everything that they wrote is
  // then visible to the caller. `work` must not throw and must not call run(). Allocates nothing.
  template <typename Work>
  void run(std::size_t num_chunks, Work&& work) {
    using Plain = std::remove_reference_t<Work>;
    run_job({.call =
                 [](const void* context, std::size_t chunk, int thread) {
                   Plain& call = *static_cast<Plain*>(const_cast<void*>(context));
                   if constexpr (std::is_invocable_v<Plain&, std::size_t, int>) {
                     call(chunk, thread);
                   } else {
                     call(chunk);
                   }
                 },
             .context = &work,
             .num_chunks = num_chunks});
  }

 private:
  struct Job {
    void (*call)(const void* context, std::size_t chunk, int thread) = nullptr;
    const void* context = nullptr;
    std::size_t num_chunks = 0;
  };

  void run_job(const Job& job) RP_EXCLUDES(mutex_);
  void take_chunks(const Job& job, int thread);
  void serve(int thread) RP_EXCLUDES(mutex_);

  // The next chunk that no thread has taken. Relaxed, because it only hands out indices; mutex_
  // orders the data.
  std::atomic<std::size_t> next_chunk_{0};

  Mutex mutex_;
  CondVar job_posted_;
  CondVar threads_done_;
  Job job_ RP_GUARDED_BY(mutex_);
  std::uint64_t num_jobs_ RP_GUARDED_BY(mutex_) = 0;  // posted so far; a thread serves each of them once
  std::size_t num_busy_ RP_GUARDED_BY(mutex_) = 0;    // threads that have not finished the current job
  bool stopping_ RP_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;  // last, because they use everything above
};

}  // namespace rp
