// planner/simulate_command.h
// `rp-plan simulate`: what a step takes by a schedule, for stages that are given or planned.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/options.h"
#include "planner/prediction/workload_file.h"
#include "scheduler/planner.h"

namespace rp {

// Of chained asynchronous steps, so many are looked at where each task counts: their memory, their timeline. For the
// memory of steps of many tasks, fewer.
inline constexpr int kChainedSteps = 9, kMinChainedSteps = 4;
// Where each task counts.
inline constexpr std::uint64_t kMaxTasksInMemory = 2'000'000;

// The most at once.
struct StepMemory {
  std::vector<double> gpu_bytes{};  // by GPU
  double host_bytes = 0;            // activations, of RoundPipe

  [[nodiscard]] std::size_t largest_gpu() const;
};
[[nodiscard]] StepMemory peaks_of(const ScheduleMemory& memory);

// Of RoundPipe, or of stages bound to GPUs.
struct SimulatedStep {
  double step_ms = 0;  // makespan, or period of asynchronous steps
  double bubble = 0;   // the share of the GPUs' time, weighted by their speed, in which they do not compute
  double lower_bound_ms = 0;
  int round_microbatches = 0;
  Plan plan{};                         // of RoundPipe
  std::vector<int> stages{};           // else: layers of each
  std::optional<StepMemory> memory{};  // where the file says what layers need
};

struct SimulationResult {
  std::optional<BoundSchedule> schedule;
  bool planned = false;
  int num_layers = 0;  // without the head
  SimulatedStep synchronous{};
  std::optional<SimulatedStep> asynchronous = std::nullopt;  // of RoundPipe
};

// `effort`: of the search where the file gives no stages. `found`: told of each better plan (Effort::kForever, which
// ends when `stop` says so). Throws rp::Error (kBadInput, kUsage).
[[nodiscard]] SimulationResult simulate_file(const WorkloadFile& file, std::optional<BoundSchedule> schedule,
                                             Effort effort, const std::function<void(const std::string&)>& found,
                                             const std::function<bool()>& stop);

// The layers of bound stages, the last one with the head.
[[nodiscard]] std::vector<LayerRange> bound_layers(const std::vector<int>& stages);

// "8,8,11" or "4x7,1" (as lengths_text()) of bound stages, the last one with the head; "rounds of 16; forward …; fused
// …; backward …" of RoundPipe.
[[nodiscard]] std::string stages_text(const SimulatedStep& step, int num_layers);
[[nodiscard]] std::string simulation_text(const SimulationResult& result);
// One object in one line.
[[nodiscard]] std::string simulation_json(const SimulationResult& result);

}  // namespace rp
