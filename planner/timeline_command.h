// planner/timeline_command.h
// `rp-plan timeline`: what the workers of a traced run did, as a table and as a page.
#pragma once

#include <string>
#include <vector>

#include "planner/timeline/timeline_page.h"
#include "planner/timeline/trace_file.h"

namespace rp {

// Of the trace's window.
struct WorkerTime {
  int worker = 0;
  double busy_ms = 0;          // it computes
  double exposed_wait_ms = 0;  // it waits and does not compute
};

[[nodiscard]] std::vector<WorkerTime> worker_times(const Trace& trace);

[[nodiscard]] std::string timeline_text(const Trace& trace, const std::string& file);
[[nodiscard]] TimelinePage timeline_page(const Trace& trace, const std::string& file);

}  // namespace rp
