#include "planner/timeline/trace_file.h"

#include <algorithm>
#include <limits>
#include <string>

#include "common/bad_input.h"
#include "planner/timeline/trace_events.h"

namespace rp {

namespace {

constexpr std::uint64_t kMaxTraceSpans = 1'000'000;  // in the window
constexpr int kMaxTraceWorkers = 1024;

// Returns true if the event counts for the workers and the length of the trace.
bool counts(const TraceEvent& event) {
  const std::string& category = event.category;
  return category == "compute" || category == "wait" || category == "upload" || category == "download" ||
         category == "update" || category == "commit";
}

// The range of times that the first reading finds, in microseconds.
struct Extent {
  double first = std::numeric_limits<double>::infinity(), last = -std::numeric_limits<double>::infinity();

  void include(const TraceEvent& event) {
    first = std::min(first, event.start_us);
    last = std::max(last, event.start_us + event.duration_us);
  }
  [[nodiscard]] bool is_empty() const { return last < first; }
};

struct Extents {
  Extent all;
  Extent steps;  // of the requested steps
  std::int64_t first_step = std::numeric_limits<std::int64_t>::max(), last_step = -1;
  std::map<int, std::vector<TraceSpan>> workers;  // without spans
};

Extents read_extents(const std::filesystem::path& path, const TraceWindow& window) {
  Extents found;
  bool computes = false;
  read_trace_events(path, [&](const TraceEvent& event) {
    if (!counts(event)) return;
    if (event.pid > kMaxTraceWorkers) {
      throw bad_input(path, "event ", event.number, " (", quoted_name(event.name), ") has the pid ", event.pid,
                      "; workers have 1 to ", kMaxTraceWorkers);
    }
    if (event.pid > 0) found.workers[static_cast<int>(event.pid) - 1];
    found.all.include(event);
    if (event.category != "compute") return;
    computes = true;
    if (event.step < 0) return;
    found.first_step = std::min(found.first_step, event.step);
    found.last_step = std::max(found.last_step, event.step);
    if (window.steps && event.step >= window.steps->first && event.step <= window.steps->second)
      found.steps.include(event);
  });
  if (!computes) throw bad_input(path, "has no event of the category \"compute\"; is it a trace of rp-launch --trace?");
  return found;
}

// Narrows the trace's window to the requested part.
void set_window(const std::filesystem::path& path, const TraceWindow& asked, const Extents& found, Trace& trace) {
  const double zero = found.all.first;
  trace.to_ms = trace.length_ms = (found.all.last - zero) / 1000;
  if (asked.steps && found.steps.is_empty()) {
    throw Error(ExitCode::kUsage,
                cat("--steps ", asked.steps->first, "-", asked.steps->second, ": ", path.string(), " has ",
                    found.last_step < 0 ? std::string("no steps")
                                        : cat("the steps ", found.first_step, " to ", found.last_step)));
  }
  if (asked.steps) {
    trace.from_ms = (found.steps.first - zero) / 1000;
    trace.to_ms = (found.steps.last - zero) / 1000;
  }
  if (asked.from_ms) trace.from_ms = *asked.from_ms;
  if (asked.to_ms) trace.to_ms = std::min(trace.to_ms, *asked.to_ms);
  if (trace.from_ms >= trace.to_ms) {
    throw Error(ExitCode::kUsage, cat("--from ", trace.from_ms, ": ", path.string(), " has ", trace.length_ms, " ms"));
  }
}

}  // namespace

Trace read_trace(const std::filesystem::path& path, const TraceWindow& window) {
  Trace trace;
  Extents found = read_extents(path, window);
  set_window(path, window, found, trace);
  trace.workers = std::move(found.workers);
  std::uint64_t num_spans = 0;
  read_trace_events(path, [&](const TraceEvent& event) {
    const bool is_wait = event.category == "wait";
    if (event.pid == 0 || (!is_wait && event.category != "compute")) return;
    const double start = (event.start_us - found.all.first) / 1000, end = start + event.duration_us / 1000;
    if (end <= trace.from_ms || start >= trace.to_ms) return;
    if (++num_spans > kMaxTraceSpans) {
      throw Error(ExitCode::kUsage,
                  cat(path.string(), ": more than ", kMaxTraceSpans, " events between ", trace.from_ms, " and ",
                      trace.to_ms, " ms; ask for less by --steps, or --from and --to"));
    }
    trace.workers[static_cast<int>(event.pid) - 1].push_back({.start_ms = start, .end_ms = end, .is_wait = is_wait});
  });
  for (auto& [worker, spans] : trace.workers) {
    std::stable_sort(spans.begin(), spans.end(),
                     [](const TraceSpan& a, const TraceSpan& b) { return a.start_ms < b.start_ms; });
  }
  return trace;
}

}  // namespace rp
