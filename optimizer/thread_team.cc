#include "optimizer/thread_team.h"

#include <pthread.h>

#include <system_error>

#include "common/check.h"

namespace rp {

ThreadTeam::ThreadTeam(int num_threads, const std::string& name) {
  RP_ASSERT(num_threads >= 1);
  threads_.reserve(static_cast<std::size_t>(num_threads) - 1);
  try {
    for (int i = 1; i < num_threads; ++i) {
      threads_.emplace_back([this, i] { serve(i); });
      pthread_setname_np(threads_.back().native_handle(), (name + "-" + std::to_string(i)).c_str());
    }
  } catch (const std::system_error&) {
    // If no more threads may be started, the existing ones do all chunks.
  }
}

ThreadTeam::~ThreadTeam() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  job_posted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadTeam::run_job(const Job& job) {
  next_chunk_.store(0, std::memory_order_relaxed);
  if (threads_.empty() || job.num_chunks <= 1) return take_chunks(job, 0);
  {
    MutexLock lock(mutex_);
    RP_ASSERT(num_busy_ == 0);
    job_ = job;
    ++num_jobs_;
    num_busy_ = threads_.size();
  }
  job_posted_.notify_all();
  take_chunks(job, 0);
  // No deadline, because the other threads compute on memory of this process and wait for nothing.
  MutexLock lock(mutex_);
  while (num_busy_ > 0) threads_done_.wait(mutex_);
}

void ThreadTeam::take_chunks(const Job& job, int thread) {
  for (;;) {
    const std::size_t chunk = next_chunk_.fetch_add(1, std::memory_order_relaxed);
    if (chunk >= job.num_chunks) return;
    job.call(job.context, chunk, thread);
  }
}

void ThreadTeam::serve(int thread) {
  std::uint64_t num_served = 0;
  for (;;) {
    Job job;
    {
      MutexLock lock(mutex_);
      // No deadline, because the thread may be idle between steps for any time. The destructor
      // wakes it.
      while (num_jobs_ == num_served && !stopping_) job_posted_.wait(mutex_);
      if (stopping_) return;
      num_served = num_jobs_;
      job = job_;
    }
    take_chunks(job, thread);
    bool last = false;
    {
      MutexLock lock(mutex_);
      last = --num_busy_ == 0;
    }
    if (last) threads_done_.notify_all();
  }
}

}  // namespace rp
