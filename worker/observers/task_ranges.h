// worker/observers/task_ranges.h
// A profiler's ranges around what a worker's stage runner does: the task, in it each microbatch, in that each layer.
//
// Used by the stage runner's thread. Without a profiler nothing happens, and no text is made.
#pragma once

#include <string>

#include "device/profiler_ranges.h"
#include "hoststore/control.h"

namespace rp {

class TaskRanges {
 public:
  // nullptr: there is no profiler. It must outlive this.
  explicit TaskRanges(ProfilerRanges* profiler = nullptr) : profiler_(profiler) {}
  TaskRanges(const TaskRanges&) = delete;
  TaskRanges& operator=(const TaskRanges&) = delete;

  // A range as long as it lives; what is still open in it ends with it.
  class Scope {
   public:
    ~Scope() { ranges_.close(depth_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class TaskRanges;
    Scope(TaskRanges& ranges, int depth) : ranges_(ranges), depth_(depth) {}
    TaskRanges& ranges_;
    const int depth_;  // before it
  };

  // "forward of layers 0-3, pipeline 0, round 7, step 4".
  [[nodiscard]] Scope task(const Command& command);
  // "microbatch 2", "recompute of microbatch 2".
  [[nodiscard]] Scope microbatch(int number, bool is_recompute);
  // "layer 5", or "loss" for a number below 0: until the next layer or the end of the microbatch. REQUIRES: within a
  // microbatch.
  void layer(int number);

 private:
  void push(const std::string& text);
  void close(int depth);

  ProfilerRanges* const profiler_;
  int depth_ = 0;
  bool in_layer_ = false;
};

}  // namespace rp
