// planner/options.h
// PlanOptions: the parsed command line of rp-plan.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/network_profile.h"
#include "planner/prediction/run_prediction.h"
#include "planner/timeline/trace_file.h"
#include "roundpipe/trained_parts.h"
#include "scheduler/bound/bound_schedules.h"
#include "scheduler/workload.h"

namespace rp {

// The options of `rp-plan plan`: which model is to be trained, with which settings, and on which
// machine.
struct ModelQuestion {
  std::string model{};  // a preset or a folder
  int num_gpus = 8;     // of each node
  int num_nodes = 1;
  NetworkProfile network{};     // between the nodes
  std::string gpu = "rtx4090";  // name or file of a profile; so is `server`
  std::string server = "xeon6330-8gpu";
  std::uint64_t host_bytes = 0;  // of each node; 0: all memory of the server
  int sequence_length = 2048;
  int batch = 128;
  TrainedParts parts{};
  bool asynchronous = false;
  bool fp16_accumulate = false;
  bool pageable_weights = false;
  int round_microbatches = 0;  // 0: proposed
  int rounds_per_step = 0;     // 0: proposed
  int max_fused_layers = 2;
  std::optional<RecomputeGrain> recompute{};  // nullopt: chosen by the search
};

struct PlanOptions {
  enum class Action { kHelp, kVersion, kSimulate, kCompare, kTimeline, kPlan };

  Action action = Action::kHelp;
  std::string help{};                                    // kHelp: the text to print
  std::optional<BoundSchedule> schedule = std::nullopt;  // kSimulate; nullopt: RoundPipe
  std::filesystem::path input{};                         // a workload file; kTimeline: a trace
  Effort effort = Effort::kThorough;
  bool json = false;
  bool published = false;        // kCompare: compare the published runs instead of a file
  std::filesystem::path html{};  // kCompare, kPlan: the page to write; empty: none
  TraceWindow window{};          // kTimeline
  ModelQuestion question{};      // kPlan
};

// Parses the command line. `arguments`: all words after the program's name. Throws rp::Error
// (kUsage) naming the wrong word and what is allowed instead.
[[nodiscard]] PlanOptions parse_plan_options(const std::vector<std::string>& arguments);

// Returns the value of --quantize, such as "nf4"; empty for kAsInFiles, which has none.
[[nodiscard]] std::string frozen_weights_name(FrozenWeights format);

// Returns a name such as "looped-bfs"; nullopt: the name of RoundPipe's schedule.
[[nodiscard]] std::string schedule_name(std::optional<BoundSchedule> schedule);

}  // namespace rp
