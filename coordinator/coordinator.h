// coordinator/coordinator.h
// The side of a run that decides: which worker gets which stage, what is final, when weights change.
//
// Rounds are accepted in the caller's thread; a thread of its own follows the completions and moves the commit point
// over the slots, in slot order (docs/design/protocol.md). Only then are inputs freed and gradients given to the Updates.
// Dispatch happens in both threads, under the mutex, and runs ahead of the workers.
//
// Owned by the Session's pipeline. The Store must outlive it. accept_*(), synchronize() come from one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "coordinator/free_sender.h"
#include "coordinator/input_blocks.h"
#include "coordinator/round.h"
#include "coordinator/updates.h"
#include "hoststore/store.h"
#include "scheduler/partition.h"

namespace rp {

struct CoordinatorOptions {
  int rounds_per_step = 1;
  bool asynchronous = false;
  int optimizer_threads = 1;
  Plan plan;            // of the first rounds
  bool replan = true;   // cut anew when layer times are known
  std::uint64_t max_stage_bytes = UINT64_MAX;
};

class Coordinator {
 public:
  Coordinator(Store& store, CoordinatorOptions options);
  // Ends the workers: drops what is in flight.
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Other weights will be written to the store, as a new version that has `steps` steps behind it.
  // REQUIRES: nothing in flight, no round since the last step.
  void restart_at(std::uint64_t steps);

  // Copies the inputs and dispatches the round. Waits while two rounds are in flight. Throws what fail() was told.
  std::shared_ptr<RoundOutcome> accept_round(const std::vector<MicrobatchData>& microbatches, int loss);

  // Accepts the step that ends the rounds since the last one. REQUIRES: exactly rounds_per_step rounds came before.
  std::shared_ptr<StepOutcome> accept_step(const AdamW& rule, const StepOptions& options);

  [[nodiscard]] double wait_loss(const RoundOutcome& outcome);
  // Waits until norm_known; what it returns does not change any more.
  [[nodiscard]] const StepOutcome& wait_norm(const StepOutcome& outcome);

  // Waits until everything accepted is committed and applied.
  void synchronize();

  // The same at the end of a run: returns the run's failure if no call has thrown it before.
  [[nodiscard]] std::exception_ptr finish();

  // The run cannot go on: every wait, present or later, throws `error`. The first call counts.
  void fail(std::exception_ptr error);

  [[nodiscard]] std::uint64_t num_steps() const { return num_steps_; }
  // Of the weights after the last accepted step; they lie in working copy version() mod copies.
  [[nodiscard]] std::uint64_t version() const { return num_steps_ + version_offset_; }
  [[nodiscard]] int rounds_since_step() const { return rounds_since_step_; }
  [[nodiscard]] Plan plan();

 private:
  void check_failure() RP_REQUIRES(mutex_);
  // Runs a wait for the updates; what it throws is known to the caller then.
  template <typename Wait>
  void wait_for_updates(Wait wait);
  void dispatch() RP_REQUIRES(mutex_);
  [[nodiscard]] Command command_for(const Round& round, const Slot& slot) const RP_REQUIRES(mutex_);
  [[nodiscard]] InputSource source_of(const Slot& producer) const RP_REQUIRES(mutex_);

  void follow_completions();
  [[nodiscard]] bool next_completion(int worker, Completion& completion);
  void commit(const Completion& completion) RP_REQUIRES(mutex_);
  void commit_failure(const Round& round, const Slot& slot) RP_REQUIRES(mutex_);
  void free_block(const BlockPlace& place) RP_REQUIRES(mutex_);
  void commit_gradients(const Round& round, const Slot& slot) RP_REQUIRES(mutex_);
  void end_round(const Round& round) RP_REQUIRES(mutex_);

  Store& store_;
  const CoordinatorOptions options_;
  Updates updates_;
  std::vector<RingWriter<Command>> commands_;
  std::vector<RingReader<Completion>> completions_;  // the commit thread's
  InputBlocks inputs_;

  // The caller's thread only.
  std::uint64_t num_rounds_ = 0;    // since the start of training, those before a loaded state included
  std::uint64_t num_attempts_ = 0;  // of rounds, by this object: never the same number twice
  std::uint64_t num_steps_ = 0;     // since the start of training
  std::uint64_t version_offset_ = 0;  // version - steps, modulo 2^64: versions only grow, also when a state is loaded
  int rounds_since_step_ = 0;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Round> rounds_ RP_GUARDED_BY(mutex_);          // in flight, oldest first
  std::uint64_t next_slot_ RP_GUARDED_BY(mutex_) = 0;       // to number
  std::uint64_t next_dispatch_ RP_GUARDED_BY(mutex_) = 0;   // slot number
  std::uint64_t commit_point_ RP_GUARDED_BY(mutex_) = 0;    // slot number
  std::vector<int> outstanding_ RP_GUARDED_BY(mutex_);      // dispatched, not committed; per worker
  std::vector<std::uint64_t> next_event_ RP_GUARDED_BY(mutex_);  // per worker
  FreeSender frees_ RP_GUARDED_BY(mutex_);
  Plan plan_ RP_GUARDED_BY(mutex_);
  LayerTimes layer_times_ RP_GUARDED_BY(mutex_);
  std::exception_ptr error_ RP_GUARDED_BY(mutex_);
  bool error_is_known_ RP_GUARDED_BY(mutex_) = false;  // a call has thrown it
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace rp
