// planner/timeline/trace_file.h
// Reads what a run did from the trace of `rp-launch --trace`: Chrome trace JSON (docs/planning.md
// lists the parts that are used).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace rp {

// The requested part of a trace; nothing given: all. Times count from the first event.
struct TraceWindow {
  std::optional<double> from_ms{}, to_ms{};
  std::optional<std::pair<std::int64_t, std::int64_t>> steps{};  // first and last
};

enum class TraceSpanKind : std::uint8_t {
  kForward,
  kFused,
  kRecompute,
  kBackward,
  kUploadInputs,
  kUploadWeights,
  kDownload,
  kWait,
  kUpdate,
  kCommit
};

// One event of the trace. -1: the trace does not contain the value.
struct TraceSpan {
  double start_ms = 0;
  double end_ms = 0;
  TraceSpanKind kind = TraceSpanKind::kForward;
  int microbatch = -1;
  int first_layer = -1, end_layer = -1;
  std::int64_t step = -1;
  std::int64_t slot = -1;
  std::int64_t bytes = -1;
  int name = -1;  // of waits, updates and commits: index into Trace::names
};

[[nodiscard]] inline bool is_compute(TraceSpanKind kind) { return kind <= TraceSpanKind::kBackward; }

// The spans that are at least partly in the window, ordered by their beginnings.
struct Trace {
  std::map<int, std::vector<TraceSpan>> workers;  // all workers of the trace, also those without spans in the window
  std::vector<TraceSpan> coordinator;
  std::vector<std::string> names;
  double from_ms = 0, to_ms = 0;  // the window
  double length_ms = 0;           // of the whole trace
};

inline constexpr std::uint64_t kMaxTraceBytes = std::uint64_t{2} << 30;
inline constexpr std::uint64_t kMaxTraceSpans = 1'000'000;  // in the window
inline constexpr int kMaxTraceWorkers = 1024;

// Reads the file twice in pieces, so memory grows with the spans of the window and not with the
// file. Throws rp::Error: kBadInput naming the file, the event and what would be right; kUsage if
// the window is empty.
[[nodiscard]] Trace read_trace(const std::filesystem::path& path, const TraceWindow& window);

}  // namespace rp
