#include "planner/timeline_command.h"

#include <algorithm>
#include <iomanip>
#include <iterator>
#include <sstream>
#include <utility>

#include "common/text.h"

namespace rp {

namespace {

// Returns the time in the window in which at least one of `spans` runs for which `counts` returns
// true. `spans` are ordered by their beginnings.
template <typename Counts>
double covered_ms(const Trace& trace, const std::vector<TraceSpan>& spans, const Counts& counts) {
  double covered = 0, until = trace.from_ms;
  for (const TraceSpan& span : spans) {
    if (!counts(span)) continue;
    const double end = std::min(span.end_ms, trace.to_ms);
    covered += std::max(0.0, end - std::max(span.start_ms, until));
    until = std::max(until, end);
  }
  return covered;
}

const std::vector<std::string> kColumns = {"worker", "busy ms", "busy %", "bubble %", "exposed waits ms"};

// Returns a line for each worker, and one for their mean.
std::vector<std::vector<std::string>> table_of(const Trace& trace) {
  const double window = trace.to_ms - trace.from_ms;
  std::vector<std::vector<std::string>> lines;
  const auto add = [&](const std::string& name, double busy, double exposed) {
    const double share = 100 * busy / window;
    lines.push_back({name, decimal(busy, 3), decimal(share, 2), decimal(100 - share, 2), decimal(exposed, 3)});
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
  return lines;
}

std::string hover_of(const Trace& trace, const TraceSpan& span) {
  std::string text;
  switch (span.kind) {
    case TraceSpanKind::kForward: text = "forward"; break;
    case TraceSpanKind::kFused: text = "fused"; break;
    case TraceSpanKind::kRecompute: text = "recompute"; break;
    case TraceSpanKind::kBackward: text = "backward"; break;
    case TraceSpanKind::kUploadInputs: text = "upload of inputs"; break;
    case TraceSpanKind::kUploadWeights: text = "upload of weights"; break;
    case TraceSpanKind::kDownload: text = "download"; break;
    case TraceSpanKind::kWait: text = "wait"; break;
    case TraceSpanKind::kUpdate: text = "update"; break;
    case TraceSpanKind::kCommit: text = "commit"; break;
  }
  if (span.name >= 0) text += ": " + trace.names[span.name];
  if (span.first_layer >= 0 && span.end_layer > span.first_layer) {
    text += span.end_layer - span.first_layer == 1 ? cat(", layer ", span.first_layer)
                                                   : cat(", layers ", span.first_layer, "-", span.end_layer - 1);
  }
  if (span.microbatch >= 0) text += cat(", microbatch ", span.microbatch);
  if (span.step >= 0) text += cat(", step ", span.step);
  if (span.slot >= 0) text += cat(", slot ", span.slot);
  if (span.bytes >= 0) text += cat(", ", bytes_text(static_cast<std::uint64_t>(span.bytes)));
  return text;
}

TimelinePhase phase_of(TraceSpanKind kind) {
  switch (kind) {
    case TraceSpanKind::kForward: return TimelinePhase::kForward;
    case TraceSpanKind::kFused: return TimelinePhase::kFused;
    case TraceSpanKind::kRecompute: return TimelinePhase::kRecompute;
    case TraceSpanKind::kBackward: return TimelinePhase::kBackward;
    case TraceSpanKind::kUpdate: return TimelinePhase::kUpdate;
    default: return TimelinePhase::kOther;
  }
}

TimelineRow row_of(const Trace& trace, const std::string& name, const std::vector<TraceSpan>& spans) {
  TimelineRow row{.name = name};
  for (const TraceSpan& span : spans) {
    TimelineSpan drawn{.start_ms = span.start_ms,
                       .end_ms = span.end_ms,
                       .phase = phase_of(span.kind),
                       .microbatch = span.microbatch,
                       .hover = hover_of(trace, span)};
    switch (span.kind) {
      case TraceSpanKind::kUploadInputs: row.upload_inputs.push_back(std::move(drawn)); break;
      case TraceSpanKind::kUploadWeights: row.upload_weights.push_back(std::move(drawn)); break;
      case TraceSpanKind::kDownload: row.download.push_back(std::move(drawn)); break;
      case TraceSpanKind::kWait: row.waits.push_back(std::move(drawn)); break;
      default:
        drawn.step = is_compute(span.kind) ? static_cast<int>(std::min<std::int64_t>(span.step, INT32_MAX)) : -1;
        if (is_compute(span.kind) && span.microbatch >= 0) drawn.text = cat(span.microbatch);
        row.compute.push_back(std::move(drawn));
    }
  }
  return row;
}

std::string window_text(const Trace& trace) {
  return cat(decimal(trace.from_ms, 3), " to ", decimal(trace.to_ms, 3), " ms of ", decimal(trace.length_ms, 3), " ms");
}

}  // namespace

std::vector<WorkerTime> worker_times(const Trace& trace) {
  std::vector<WorkerTime> times;
  for (const auto& [worker, spans] : trace.workers) {
    const double busy = covered_ms(trace, spans, [](const TraceSpan& span) { return is_compute(span.kind); });
    // Waits during which the worker also computes cost nothing.
    const double either = covered_ms(
        trace, spans, [](const TraceSpan& span) { return is_compute(span.kind) || span.kind == TraceSpanKind::kWait; });
    times.push_back({.worker = worker, .busy_ms = busy, .exposed_wait_ms = either - busy});
  }
  return times;
}

std::string timeline_text(const Trace& trace, const std::string& file) {
  std::ostringstream out;
  out << file << ": " << window_text(trace) << ", " << trace.workers.size()
      << (trace.workers.size() == 1 ? " worker\n" : " workers\n");
  std::vector<std::vector<std::string>> lines = table_of(trace);
  lines.insert(lines.begin(), kColumns);
  for (const std::vector<std::string>& line : lines) {
    out << std::left << std::setw(8) << line.front() << std::right;
    for (std::size_t i = 1; i < line.size(); ++i) out << std::setw(i + 1 == line.size() ? 18 : 14) << line[i];
    out << "\n";
  }
  return out.str();
}

TimelinePage timeline_page(const Trace& trace, const std::string& file) {
  TimelinePage page{.title = cat("Timeline of ", file)};
  page.facts = {{"workers", cat(trace.workers.size())}, {"drawn", window_text(trace)}};
  page.columns = kColumns;
  for (const std::vector<std::string>& line : table_of(trace)) page.records.push_back({.cells = line});
  TimelineSection section{.title = "workers",
                          .first_ms = trace.from_ms,
                          .length_ms = trace.to_ms - trace.from_ms,
                          .axis_ms = trace.from_ms};
  section.caption =
      "Transfers are the thin lanes below each worker's compute. Bubble is the share of the time in which a worker "
      "does not compute.";
  for (const auto& [worker, spans] : trace.workers)
    section.rows.push_back(row_of(trace, cat("worker ", worker), spans));
  for (const auto& [kind, name] :
       {std::pair(TraceSpanKind::kUpdate, "updates"), std::pair(TraceSpanKind::kCommit, "commits")}) {
    std::vector<TraceSpan> spans;
    std::copy_if(trace.coordinator.begin(), trace.coordinator.end(), std::back_inserter(spans),
                 [kind = kind](const TraceSpan& span) { return span.kind == kind; });
    if (!spans.empty()) section.rows.push_back(row_of(trace, name, spans));
  }
  page.sections.push_back(std::move(section));
  return page;
}

}  // namespace rp
