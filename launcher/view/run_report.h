// launcher/view/run_report.h
// Formats snapshots of runs as a table for people and as JSON for programs. docs/ps.md.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "launcher/view/runs.h"

namespace rp {

// The runs at a moment, and at an earlier one, from which rates follow.
struct RunsReport {
  std::vector<RunView> now;
  std::vector<RunView> before = {};  // empty: no rates are known
};

// Returns lines that each end in a newline; a table for each run.
[[nodiscard]] std::string runs_text(const RunsReport& report);
// The same with the lines of processes_text() in place of the tables.
[[nodiscard]] std::string runs_waits_text(const RunsReport& report);
// Returns the part of the text that fits into a terminal: its first lines, each cut after `columns` characters.
[[nodiscard]] std::string fitted_text(const std::string& text, std::size_t columns, std::size_t lines);
// Returns one line of JSON that ends in a newline: docs/ps.md lists the fields.
[[nodiscard]] std::string runs_json(const RunsReport& report);

}  // namespace rp
