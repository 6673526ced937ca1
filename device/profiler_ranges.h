// device/profiler_ranges.h
// Names what a process does for a profiler that watches it: nested ranges in each thread.
#pragma once

#include <string>

namespace rp {

// Thread-safe; each thread has its own ranges.
class ProfilerRanges {
 public:
  virtual ~ProfilerRanges() = default;
  virtual void push(const std::string& text) = 0;
  // Ends the range that was begun last.
  virtual void pop() = 0;
};

}  // namespace rp
