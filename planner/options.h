// planner/options.h
// What the person asked of rp-plan.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "planner/trace_file.h"
#include "scheduler/bound_schedules.h"

namespace rp {

// How long plans are searched for.
enum class Effort { kFast, kThorough, kForever };

struct PlanOptions {
  enum class Action { kHelp, kVersion, kSimulate, kCompare, kTimeline };

  Action action = Action::kHelp;
  std::string help{};                                    // kHelp: what to print
  std::optional<BoundSchedule> schedule = std::nullopt;  // kSimulate; nullopt: RoundPipe
  std::filesystem::path input{};                         // of layer times; kTimeline: a trace
  Effort effort = Effort::kThorough;
  bool json = false;
  std::filesystem::path html{};  // kCompare, kTimeline: the page to write; empty: none
  TraceWindow window{};          // kTimeline
};

// `arguments`: all after the program's own name. Throws rp::Error (kUsage) naming the word and what there is instead.
[[nodiscard]] PlanOptions parse_plan_options(const std::vector<std::string>& arguments);

// "looped-bfs"; RoundPipe's for nullopt.
[[nodiscard]] std::string schedule_name(std::optional<BoundSchedule> schedule);

}  // namespace rp
