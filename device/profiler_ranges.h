// device/profiler_ranges.h
// Names of what a process does, for a profiler that watches it: ranges of a thread, one within the other.
#pragma once

#include <string>

namespace rp {

// Of any thread, each with ranges of its own.
class ProfilerRanges {
 public:
  virtual ~ProfilerRanges() = default;
  virtual void push(const std::string& text) = 0;
  // Ends the range that was pushed last.
  virtual void pop() = 0;
};

}  // namespace rp
