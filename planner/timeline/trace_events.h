// planner/timeline/trace_events.h
// Reads the events of a file in Chrome's trace format one after the other, so the file may be
// larger than memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace rp {

// A complete event (ph "X"). -1 or "": the event does not contain the value.
struct TraceEvent {
  std::uint64_t number = 0;  // index of the event in the file, from 0
  std::string name{}, category{};
  std::int64_t pid = -1;
  double start_us = 0, duration_us = 0;
  std::int64_t step = -1;
};

// Calls `take` for each complete event. Other events, and keys that TraceEvent does not have, are
// skipped. Throws rp::Error (kBadInput) naming the file, the event and what would be right: JSON,
// an object with the list "traceEvents", a file of at most 2 GiB, texts of at most 1 MiB,
// events with pid, ts and dur.
void read_trace_events(const std::filesystem::path& path, const std::function<void(const TraceEvent&)>& take);

}  // namespace rp
