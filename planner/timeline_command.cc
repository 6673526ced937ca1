#include "planner/timeline_command.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "common/text.h"

namespace rp {

namespace {

// Returns the time in the window in which the worker computes or, `with_waits`, computes or waits.
double covered_ms(const Trace& trace, const std::vector<TraceSpan>& spans, bool with_waits) {
  double covered = 0, until = trace.from_ms;
  for (const TraceSpan& span : spans) {
    if (span.is_wait && !with_waits) continue;
    const double end = std::min(span.end_ms, trace.to_ms);
    covered += std::max(0.0, end - std::max(span.start_ms, until));
    until = std::max(until, end);
  }
  return covered;
}

}  // namespace

std::vector<WorkerTime> worker_times(const Trace& trace) {
  std::vector<WorkerTime> times;
  for (const auto& [worker, spans] : trace.workers) {
    const double busy = covered_ms(trace, spans, false);
    // Waits during which the worker also computes cost nothing.
    times.push_back({.worker = worker, .busy_ms = busy, .exposed_wait_ms = covered_ms(trace, spans, true) - busy});
  }
  return times;
}

std::string timeline_text(const Trace& trace, const std::string& file) {
  std::ostringstream out;
  out << file << ": " << decimal(trace.from_ms, 3) << " to " << decimal(trace.to_ms, 3) << " ms of "
      << decimal(trace.length_ms, 3) << " ms, " << trace.workers.size()
      << (trace.workers.size() == 1 ? " worker\n" : " workers\n")
      << "worker         busy ms        busy %      bubble %  exposed waits ms\n";
  const auto add = [&](const std::string& name, double busy, double exposed) {
    const double share = 100 * busy / (trace.to_ms - trace.from_ms);
    out << std::left << std::setw(8) << name << std::right << std::setw(14) << decimal(busy, 3) << std::setw(14)
        << decimal(share, 2) << std::setw(14) << decimal(100 - share, 2) << std::setw(18) << decimal(exposed, 3)
        << "\n";
  };
  double busy = 0, exposed = 0;
  const std::vector<WorkerTime> times = worker_times(trace);
  for (const WorkerTime& time : times) {
    add(cat(time.worker), time.busy_ms, time.exposed_wait_ms);
    busy += time.busy_ms;
    exposed += time.exposed_wait_ms;
  }
  const double count = std::max<double>(1, static_cast<double>(times.size()));
  add("mean", busy / count, exposed / count);
  return out.str();
}

}  // namespace rp
