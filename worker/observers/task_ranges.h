// worker/observers/task_ranges.h
// Opens a profiler's ranges around the work of a worker's stage runner: one for the task, within it
// one for each microbatch, and within that one for each layer.
//
// Used by the stage runner's thread. Without a profiler it does nothing and builds no text.
#pragma once

#include <string>

#include "device/profiler_ranges.h"
#include "hoststore/control.h"

namespace rp {

class TaskRanges {
 public:
  // `profiler` may be null: there is none. It must outlive this object.
  explicit TaskRanges(ProfilerRanges* profiler = nullptr) : profiler_(profiler) {}
  TaskRanges(const TaskRanges&) = delete;
  TaskRanges& operator=(const TaskRanges&) = delete;

  // Keeps a range open as long as it lives. Ranges that are still open within it end with it.
  class Scope {
   public:
    ~Scope() { ranges_.close(depth_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class TaskRanges;
    Scope(TaskRanges& ranges, int depth) : ranges_(ranges), depth_(depth) {}
    TaskRanges& ranges_;
    const int depth_;  // number of ranges that were open before it
  };

  // "forward of layers 0-3, pipeline 0, round 7, step 4".
  [[nodiscard]] Scope task(const Command& command);
  // "microbatch 2", "recompute of microbatch 2".
  [[nodiscard]] Scope microbatch(int number, bool is_recompute);
  // "layer 5", or "loss" if `number` is negative. The range ends at the next layer or at the end of
  // the microbatch. REQUIRES: a microbatch is open.
  void layer(int number);

 private:
  void push(const std::string& text);
  void close(int depth);

  ProfilerRanges* const profiler_;
  int depth_ = 0;
  bool in_layer_ = false;
};

}  // namespace rp
