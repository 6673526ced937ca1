// planner/timeline/timeline_page.h
// Timelines as one HTML page that needs nothing else: no network, no fonts, no script. Plain data in, text out;
// simulations and traces of runs fill the same structs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rp {

enum class TimelinePhase : std::uint8_t { kForward, kRecompute, kFused, kBackward, kWeightGradient, kUpdate, kOther };
inline constexpr std::size_t kNumTimelinePhases = 7;

// Names are plain text: the page escapes them.
struct TimelineSpan {
  double start_ms = 0;
  double end_ms = 0;
  TimelinePhase phase = TimelinePhase::kOther;
  double recompute_ms = 0;  // at its beginning, if that is no span of its own
  int microbatch = -1;      // gives the shade; -1: none
  int step = -1;            // is told apart from the steps before and after; -1: not known
  std::string text{};       // inside, where there is room
  std::string hover{};      // the page adds the times
};

// A GPU, or whatever works in a row of its own. Spans of one list are in the order of their beginnings. The phase is
// read of `compute` only.
struct TimelineRow {
  std::string name{};
  std::vector<TimelineSpan> compute{};
  std::vector<TimelineSpan> waits{};                                        // behind `compute`
  std::vector<TimelineSpan> upload_inputs{}, upload_weights{}, download{};  // thin lanes below
};

// An amount over time, as an area below the rows.
struct TimelinePoint {
  double ms = 0;
  double amount = 0;  // until the next point
};
struct TimelineStrip {
  std::string name{};
  std::string note{};  // below the name, as short
  std::string hover{};
  double full = 0;                      // the amount that the whole height stands for
  std::vector<TimelinePoint> points{};  // by time; 0 before the first one
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
  // What is drawn: spans are cut at both ends. The axis counts from `axis_ms` at the left edge on.
  double first_ms = 0;
  double length_ms = 0;
  double axis_ms = 0;
};

// Of a table: one cell for each column, and what does not fit into columns.
struct TimelineRecord {
  std::vector<std::string> cells{};
  std::string note{};
};

struct TimelinePage {
  std::string title{};
  std::vector<TimelineFact> facts{};
  std::vector<std::string> columns{};  // of the table; the first one is text, the others are numbers
  std::vector<TimelineRecord> records{};
  std::vector<TimelineSection> sections{};  // all in the time scale of the longest
};

// UTF-8, well-formed XML too. Spans narrower than a fraction of a pixel are merged, as many as it takes to keep the
// page below about 2 MB.
[[nodiscard]] std::string timeline_html(const TimelinePage& page);

}  // namespace rp
