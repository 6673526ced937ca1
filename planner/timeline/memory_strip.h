// planner/timeline/memory_strip.h
// Draws memory over time as a strip below a timeline.
#pragma once

#include <string>
#include <vector>

#include "planner/timeline/timeline_page.h"
#include "scheduler/simulation/schedule_memory.h"

namespace rp {

// Returns the strip of `samples`, with the peak as a note. The full height stands for `full_bytes`,
// which should be equal for strips that are compared.
[[nodiscard]] TimelineStrip memory_strip(const std::string& name, const std::vector<MemorySample>& samples,
                                         double full_bytes);

}  // namespace rp
