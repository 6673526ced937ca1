// planner/timeline/timeline_svg.h
// Draws the diagram of one section of a timeline page. Colours are CSS classes, which
// timeline_page.cc defines.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/indexed.h"
#include "planner/timeline/timeline_page.h"

namespace rp {

// The width in pixels for which lengths are computed in a diagram that is not zoomed. It may be
// wider on the screen, but not narrower.
inline constexpr int kTimelineWidth = 900;

// The CSS classes of phases. Other classes: shades ('a' is the strongest), transfer lanes (I, P, D) and idle time (V).
inline constexpr IndexedArray<TimelinePhase, const char*, kNumTimelinePhases> kPhaseClasses = {"F", "R", "U",
                                                                                               "B", "W", "O"};
inline constexpr int kNumShades = 12;

// The shape that is drawn for one span, or for several narrow ones.
struct TimelineShape {
  double start_ms = 0;
  double end_ms = 0;
  double busy_ms = 0;  // sum over the spans
  int num_spans = 0;
  const TimelineSpan* span = nullptr;  // the longest of the spans
};

// Returns the shapes of spans in the section's window. Neighbours are merged until a shape is
// `least_ms` long, unless there is a gap of at least `least_ms` between them.
[[nodiscard]] std::vector<TimelineShape> timeline_shapes(const TimelineSection& section,
                                                         const std::vector<TimelineSpan>& spans, double least_ms);

// Returns the number of shapes of a section.
[[nodiscard]] std::size_t num_timeline_shapes(const TimelineSection& section, double least_ms);

// Returns a strip in the section's window as steps. Points closer than `least_ms` become one, with
// the largest of their amounts.
[[nodiscard]] std::vector<TimelinePoint> strip_points(const TimelineSection& section, const TimelineStrip& strip,
                                                      double least_ms);

// Returns HTML with the names of the rows and strips, and next to them the diagram in a box that
// scrolls. `scale_ms`: the time that the full width stands for.
[[nodiscard]] std::string timeline_svg(const TimelineSection& section, double scale_ms, double least_ms);

}  // namespace rp
