#include "planner/timeline/memory_strip.h"

#include <cstdint>

#include "common/text.h"

namespace rp {

TimelineStrip memory_strip(const std::string& name, const std::vector<MemorySample>& samples, double full_bytes) {
  TimelineStrip strip{.name = name, .full = full_bytes};
  for (const MemorySample& sample : samples) strip.points.push_back({.ms = sample.time, .amount = sample.bytes});
  strip.note = "peak " + bytes_text(static_cast<std::uint64_t>(peak_bytes(samples)));
  strip.hover =
      cat(name, ", ", strip.note, "\nthe strip's height: ", bytes_text(static_cast<std::uint64_t>(full_bytes)));
  return strip;
}

}  // namespace rp
