// planner/options.h
// What the person asked of rp-plan.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "planner/prediction/run_prediction.h"
#include "planner/timeline/trace_file.h"
#include "roundpipe/trained_parts.h"
#include "scheduler/bound/bound_schedules.h"
#include "scheduler/workload.h"

namespace rp {

// `rp-plan plan`: which model is to be trained, how, and on what.
struct ModelQuestion {
  std::string model{};  // a preset, or a folder
  int num_gpus = 8;
  std::string gpu = "rtx4090";  // profiles
  std::string server = "xeon6330-8gpu";
  std::uint64_t host_bytes = 0;  // 0: all of the server's
  int sequence_length = 2048;
  int batch = 128;
  TrainedParts parts{};
  bool asynchronous = false;
  bool fp16_accumulate = false;
  bool pageable_weights = false;
  int round_microbatches = 0;  // 0: proposed
  int rounds_per_step = 0;     // likewise
  int max_fused_layers = 2;
  std::optional<RecomputeGrain> recompute{};  // nullopt: chosen
};

struct PlanOptions {
  enum class Action { kHelp, kVersion, kSimulate, kCompare, kTimeline, kPlan };

  Action action = Action::kHelp;
  std::string help{};                                    // kHelp: what to print
  std::optional<BoundSchedule> schedule = std::nullopt;  // kSimulate; nullopt: RoundPipe
  std::filesystem::path input{};                         // of layer times; kTimeline: a trace
  Effort effort = Effort::kThorough;
  bool json = false;
  bool published = false;        // kCompare: the published runs instead of a file
  std::filesystem::path html{};  // kCompare, kTimeline: the page to write; empty: none
  TraceWindow window{};          // kTimeline
  ModelQuestion question{};      // kPlan
};

// `arguments`: all after the program's own name. Throws rp::Error (kUsage) naming the word and what there is instead.
[[nodiscard]] PlanOptions parse_plan_options(const std::vector<std::string>& arguments);

// "looped-bfs"; RoundPipe's for nullopt.
[[nodiscard]] std::string schedule_name(std::optional<BoundSchedule> schedule);

}  // namespace rp
