// planner/timeline/timeline_svg.h
// The diagram of one section of a timeline page. Colours are classes, which timeline_page.cc gives their style.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "planner/timeline/timeline_page.h"

namespace rp {

// Lengths in pixels of a diagram that is not zoomed are meant for this width; it may be wider on the screen, not
// narrower.
inline constexpr int kTimelineWidth = 900;

// The classes of phases, of shades ('a' is the strongest), of transfer lanes (I, P, D), of waits (X) and of idle time
// (V).
inline constexpr const char* kPhaseClasses[kNumTimelinePhases] = {"F", "R", "U", "B", "W", "O", "Z"};
inline constexpr int kNumShades = 12;

// What is drawn for a span, or for many that are too narrow.
struct TimelineShape {
  double start_ms = 0;
  double end_ms = 0;
  double busy_ms = 0;  // of the spans
  int num_spans = 0;
  const TimelineSpan* span = nullptr;  // the longest of them
};

// In the section's window. Neighbours are merged until a shape is `least_ms` long, unless a gap as long lies between
// them.
[[nodiscard]] std::vector<TimelineShape> timeline_shapes(const TimelineSection& section,
                                                         const std::vector<TimelineSpan>& spans, double least_ms);

// How many shapes a section has.
[[nodiscard]] std::size_t num_timeline_shapes(const TimelineSection& section, double least_ms);

// A strip in the section's window, as steps. Points closer than `least_ms` are one, with the largest of their amounts.
[[nodiscard]] std::vector<TimelinePoint> strip_points(const TimelineSection& section, const TimelineStrip& strip,
                                                      double least_ms);

// The names of the rows and strips, and beside them the diagram in a box that scrolls. `scale_ms`: what the whole width
// stands for.
[[nodiscard]] std::string timeline_svg(const TimelineSection& section, double scale_ms, double least_ms);

}  // namespace rp
