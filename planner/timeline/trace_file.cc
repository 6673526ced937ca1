#include "planner/timeline/trace_file.h"

#include <algorithm>
#include <limits>

#include "common/bad_input.h"
#include "planner/timeline/trace_events.h"

namespace rp {

namespace {

constexpr std::size_t kMaxNames = 65536;
constexpr std::int64_t kUploadWeightsTid = 3;

// Returns the kind of an event that is drawn; nothing for other events.
std::optional<TraceSpanKind> kind_of(const std::filesystem::path& path, const TraceEvent& event) {
  if (event.category == "upload")
    return event.tid == kUploadWeightsTid ? TraceSpanKind::kUploadWeights : TraceSpanKind::kUploadInputs;
  if (event.category == "download") return TraceSpanKind::kDownload;
  if (event.category == "wait") return TraceSpanKind::kWait;
  if (event.category == "update") return TraceSpanKind::kUpdate;
  if (event.category == "commit") return TraceSpanKind::kCommit;
  if (event.category != "compute") return std::nullopt;
  if (event.phase == "forward") return TraceSpanKind::kForward;
  if (event.phase == "fused") return TraceSpanKind::kFused;
  if (event.phase == "recompute") return TraceSpanKind::kRecompute;
  if (event.phase == "backward") return TraceSpanKind::kBackward;
  throw bad_input(path, "event ", event.number, " (", quoted_name(event.name), ") has the phase ",
                  quoted_name(event.phase), "; it must be forward, fused, recompute or backward");
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
  read_trace_events(path, kMaxTraceBytes, [&](const TraceEvent& event) {
    const std::optional<TraceSpanKind> kind = kind_of(path, event);
    if (!kind) return;
    if (event.pid > kMaxTraceWorkers) {
      throw bad_input(path, "event ", event.number, " (", quoted_name(event.name), ") has the pid ", event.pid,
                      "; workers have 1 to ", kMaxTraceWorkers);
    }
    if (event.pid > 0) found.workers[static_cast<int>(event.pid) - 1];
    found.all.include(event);
    if (!is_compute(*kind)) return;
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

int narrowed(std::int64_t value) {
  return static_cast<int>(std::min<std::int64_t>(value, std::numeric_limits<int>::max() - 1));
}

// Collects the names of spans, each once.
class Names {
 public:
  explicit Names(std::vector<std::string>& names) : names_(names) {}

  int number_of(const std::string& name) {
    const auto known = numbers_.find(name);
    if (known != numbers_.end()) return known->second;
    if (name.empty() || names_.size() == kMaxNames) return -1;
    constexpr std::size_t kLongest = 80;
    names_.push_back(name.substr(0, kLongest));
    return numbers_[name] = static_cast<int>(names_.size()) - 1;
  }

 private:
  std::vector<std::string>& names_;
  std::map<std::string, int> numbers_;
};

}  // namespace

Trace read_trace(const std::filesystem::path& path, const TraceWindow& window) {
  Trace trace;
  Extents found = read_extents(path, window);
  set_window(path, window, found, trace);
  trace.workers = std::move(found.workers);
  Names names(trace.names);
  std::uint64_t num_spans = 0;
  read_trace_events(path, kMaxTraceBytes, [&](const TraceEvent& event) {
    const std::optional<TraceSpanKind> kind = kind_of(path, event);
    if (!kind) return;
    const double start = (event.start_us - found.all.first) / 1000, end = start + event.duration_us / 1000;
    if (end <= trace.from_ms || start >= trace.to_ms) return;
    if (++num_spans > kMaxTraceSpans) {
      throw Error(ExitCode::kUsage,
                  cat(path.string(), ": more than ", kMaxTraceSpans, " events between ", trace.from_ms, " and ",
                      trace.to_ms, " ms; ask for less by --steps, or --from and --to"));
    }
    std::vector<TraceSpan>& spans = event.pid == 0 ? trace.coordinator : trace.workers[static_cast<int>(event.pid) - 1];
    spans.push_back({.start_ms = start,
                     .end_ms = end,
                     .kind = *kind,
                     .microbatch = narrowed(event.microbatch),
                     .first_layer = narrowed(event.first_layer),
                     .end_layer = narrowed(event.end_layer),
                     .step = event.step,
                     .slot = event.slot,
                     .bytes = event.bytes,
                     .name = is_compute(*kind) ? -1 : names.number_of(event.name)});
  });
  const auto sort = [](std::vector<TraceSpan>& spans) {
    std::stable_sort(spans.begin(), spans.end(),
                     [](const TraceSpan& a, const TraceSpan& b) { return a.start_ms < b.start_ms; });
  };
  sort(trace.coordinator);
  for (auto& [worker, spans] : trace.workers) sort(spans);
  return trace;
}

}  // namespace rp
