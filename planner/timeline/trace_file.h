// planner/timeline/trace_file.h
// Reads how long workers computed and waited from the trace of `rp-launch --trace`: Chrome trace JSON (docs/planning.md
// lists the parts that are used).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace rp {

// The requested part of a trace; nothing given: all. Times count from the first event.
struct TraceWindow {
  std::optional<double> from_ms{}, to_ms{};
  std::optional<std::pair<std::int64_t, std::int64_t>> steps{};  // first and last
};

// A time in which a worker computed or one of its threads waited.
struct TraceSpan {
  double start_ms = 0;
  double end_ms = 0;
  bool is_wait = false;
};

// The spans that are at least partly in the window, ordered by their beginnings.
struct Trace {
  std::map<int, std::vector<TraceSpan>> workers;  // all workers of the trace, also those without spans in the window
  double from_ms = 0, to_ms = 0;                  // the window
  double length_ms = 0;                           // of the whole trace
};

// Reads the file twice in pieces, so memory grows with the spans of the window and not with the
// file. Throws rp::Error: kBadInput naming the file, the event and what would be right; kUsage if
// the window is empty.
[[nodiscard]] Trace read_trace(const std::filesystem::path& path, const TraceWindow& window);

}  // namespace rp
