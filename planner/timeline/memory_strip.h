// planner/timeline/memory_strip.h
// Memory over time as a strip below a timeline.
#pragma once

#include <string>
#include <vector>

#include "planner/timeline/timeline_page.h"
#include "scheduler/simulation/schedule_memory.h"

namespace rp {

// With the peak beside it. The whole height stands for `full_bytes`: the same for strips that are compared.
[[nodiscard]] TimelineStrip memory_strip(const std::string& name, const std::vector<MemorySample>& samples,
                                         double full_bytes);

}  // namespace rp
