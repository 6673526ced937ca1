// planner/timeline/timeline_page.h
// Renders timelines as one self-contained HTML page: no network, no fonts, and a script only for
// zooming. The input is plain data, and the output is text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rp {

enum class TimelinePhase : std::uint8_t { kForward, kRecompute, kFused, kBackward, kWeightGradient, kUpdate };
inline constexpr std::size_t kNumTimelinePhases = 6;

// A span of time in a row. All names and texts here and below are plain text, which the page
// escapes.
struct TimelineSpan {
  double start_ms = 0;
  double end_ms = 0;
  TimelinePhase phase = TimelinePhase::kForward;
  double recompute_ms = 0;  // at its beginning, if the recompute has no span of its own
  int microbatch = -1;      // determines the shade; -1: none
  int step = -1;            // shown below the row; -1: not known
  std::string text{};       // shown inside the span if it fits
  std::string hover{};      // shown on hover; the page adds the times
};

// A GPU, or anything else that works in a row of its own. The spans of each list are ordered by
// their beginnings. The phase is used in `compute` only.
struct TimelineRow {
  std::string name{};
  std::vector<TimelineSpan> compute{};
  std::vector<TimelineSpan> upload_inputs{}, upload_weights{}, download{};  // thin lanes below
};

// An amount over time, drawn as an area below the rows.
struct TimelinePoint {
  double ms = 0;
  double amount = 0;  // from `ms` until the next point
};
struct TimelineStrip {
  std::string name{};
  std::string note{};  // below the name, and as short as that
  std::string hover{};
  double full = 0;                      // the amount that the full height stands for
  std::vector<TimelinePoint> points{};  // ordered by time; the amount is 0 before the first one
};

struct TimelineFact {
  std::string name{};
  std::string value{};
};

struct TimelineSection {
  std::string title{};
  std::string caption{};  // may be long
  std::vector<TimelineFact> figures{};
  std::vector<TimelineRow> rows{};
  std::vector<TimelineStrip> strips{};
  // The window that is drawn; spans are cut at both ends. The axis begins with `axis_ms` at the
  // left edge.
  double first_ms = 0;
  double length_ms = 0;
  double axis_ms = 0;
};

// A line of a table: one cell for each column, and a note that does not fit into the columns.
struct TimelineRecord {
  std::vector<std::string> cells{};
  std::string note{};
};

struct TimelinePage {
  std::string title{};
  std::vector<TimelineFact> facts{};
  std::vector<std::string> columns{};  // of the table; the first one contains text, the others numbers
  std::vector<TimelineRecord> records{};
  std::vector<TimelineSection> sections{};  // all drawn in the time scale of the longest one
};

// Returns the page in UTF-8; it is also well-formed XML. Spans narrower than a fraction of a pixel
// are merged, more of them if needed to keep the page below about 2 MB.
[[nodiscard]] std::string timeline_html(const TimelinePage& page);

}  // namespace rp
