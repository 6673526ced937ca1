// planner/timeline/trace_events.h
// The events of a file in Chrome's trace format, one after the other: the file may be larger than memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace rp {

// A complete event (ph "X"). -1 or "": the event does not say.
struct TraceEvent {
  std::uint64_t number = 0;  // in the file, from 0
  std::string name{}, category{}, phase{};
  std::int64_t pid = -1, tid = -1;
  double start_us = 0, duration_us = 0;
  std::int64_t slot = -1, step = -1, first_layer = -1, end_layer = -1, microbatch = -1, bytes = -1;
};

// Calls `take` for each complete event; others are skipped, as are keys that TraceEvent lacks. Throws rp::Error
// (kBadInput) naming the file, the event and what would be right: JSON, an object with the list "traceEvents" of at
// most `max_bytes`, texts of at most 1 MiB, events with pid, tid, ts and dur.
void read_trace_events(const std::filesystem::path& path, std::uint64_t max_bytes,
                       const std::function<void(const TraceEvent&)>& take);

}  // namespace rp
