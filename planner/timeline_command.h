// planner/timeline_command.h
// `rp-plan timeline`: shows how long the workers of a traced run computed and waited.
#pragma once

#include <string>
#include <vector>

#include "planner/timeline/trace_file.h"

namespace rp {

// How a worker spent the time of the trace's window.
struct WorkerTime {
  int worker = 0;
  double busy_ms = 0;          // the worker computes
  double exposed_wait_ms = 0;  // the worker waits and does not compute
};

[[nodiscard]] std::vector<WorkerTime> worker_times(const Trace& trace);

[[nodiscard]] std::string timeline_text(const Trace& trace, const std::string& file);

}  // namespace rp
