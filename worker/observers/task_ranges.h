// worker/observers/task_ranges.h
// Opens a profiler's ranges around the work of a worker's stage runner: one for the task, within it
// one for each microbatch, and within that one for each layer.
//
// Used by the stage runner's thread. Without a profiler it does nothing and builds no text.
#pragma once

#include <string>

#include "device/profiler_ranges.h"
#include "hoststore/control.h"
#include "worker/observers/worker_observer.h"

namespace rp {

class TaskRanges final : public WorkerObserver {
 public:
  // `profiler` may be null: there is none. It must outlive this object.
  explicit TaskRanges(ProfilerRanges* profiler = nullptr) : profiler_(profiler) {}
  [[nodiscard]] bool is_on() const { return profiler_ != nullptr; }

  // "forward of layers 0-3, pipeline 0, round 7, step 4".
  void task_begun(const Command& command) override;
  // "microbatch 2", "recompute of microbatch 2".
  void microbatch_begun(int microbatch, bool is_recompute) override;
  // Ranges that are still open within a task or a microbatch end with it.
  void task_ended() override { close(0); }
  void microbatch_ended() override { close(1); }
  // "layer 5", or "loss" if `number` is negative. The range ends at the next layer or at the end of
  // the microbatch. Does nothing if no microbatch is open, as in the warm-up.
  void layer(int number);

 private:
  void push(const std::string& text);
  void close(int depth);  // ends all ranges except the outer `depth`

  ProfilerRanges* const profiler_;
  int depth_ = 0;
  bool in_layer_ = false;
};

}  // namespace rp
