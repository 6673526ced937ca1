#include "planner/memory_strip.h"

#include <iomanip>
#include <sstream>

#include "common/text.h"

namespace rp {

namespace {

// "12.3 GiB"
std::string gib_text(double bytes) {
  constexpr double kGiB = 1073741824.0;
  const double gib = bytes / kGiB;
  std::ostringstream out;
  out << std::fixed << std::setprecision(gib < 1 ? 3 : gib < 10 ? 2 : 1) << gib << " GiB";
  return out.str();
}

}  // namespace

TimelineStrip memory_strip(const std::string& name, const std::vector<MemorySample>& samples, double full_bytes) {
  TimelineStrip strip{.name = name, .full = full_bytes};
  for (const MemorySample& sample : samples) strip.points.push_back({.ms = sample.time, .amount = sample.bytes});
  strip.note = "peak " + gib_text(peak_bytes(samples));
  strip.hover = cat(name, ", ", strip.note, "\nthe strip's height: ", gib_text(full_bytes));
  return strip;
}

}  // namespace rp
