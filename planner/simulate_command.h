// planner/simulate_command.h
// `rp-plan simulate`: computes the time of a step by one schedule, for stages that are given or
// searched for.
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

// The number of chained asynchronous steps that are simulated as a graph, for their memory and
// their timeline. Memory of steps with many tasks: fewer, down to kMinChainedSteps.
inline constexpr int kChainedSteps = 9, kMinChainedSteps = 4;
// The maximum number of tasks of the graphs whose memory is computed. More are refused.
inline constexpr std::uint64_t kMaxTasksInMemory = 2'000'000;

// The peaks of the memory in use.
struct StepMemory {
  std::vector<double> gpu_bytes{};  // by GPU
  double host_bytes = 0;            // activations; RoundPipe only

  [[nodiscard]] std::size_t largest_gpu() const;
};
[[nodiscard]] StepMemory peaks_of(const ScheduleMemory& memory);

// A simulated step of RoundPipe, or of stages bound to GPUs.
struct SimulatedStep {
  double step_ms = 0;  // makespan, or for asynchronous steps the period
  double bubble = 0;   // the share of the GPUs' time, weighted by their speed, in which they do not compute
  double lower_bound_ms = 0;
  int round_microbatches = 0;
  Plan plan{};                         // RoundPipe only
  std::vector<int> stages{};           // bound schedules: number of layers of each stage
  std::optional<StepMemory> memory{};  // nullopt: the file does not give the memory of layers
};

struct SimulationResult {
  std::optional<BoundSchedule> schedule;
  bool planned = false;
  int num_layers = 0;  // without the head
  SimulatedStep synchronous{};
  std::optional<SimulatedStep> asynchronous = std::nullopt;  // RoundPipe only
};

// Simulates the file by one schedule. `effort`: of the search for stages, if the file gives none.
// With Effort::kForever, `found` is called with a text for each better plan, and the search ends
// when `stop` returns true. Throws rp::Error (kBadInput, kUsage).
[[nodiscard]] SimulationResult simulate_file(const WorkloadFile& file, std::optional<BoundSchedule> schedule,
                                             Effort effort, const std::function<void(const std::string&)>& found,
                                             const std::function<bool()>& stop);

// Returns the layers of bound stages; the last stage has the head.
[[nodiscard]] std::vector<LayerRange> bound_layers(const std::vector<int>& stages);

// Returns the numbers of layers of the stages. Bound stages: "8,8,11" or "4x7,1" (see
// lengths_text()), where the last stage has the head in addition. RoundPipe: "rounds of 16; forward
// …; fused …; backward …".
[[nodiscard]] std::string stages_text(const SimulatedStep& step, int num_layers);
[[nodiscard]] std::string simulation_text(const SimulationResult& result);
// Returns one JSON object in one line.
[[nodiscard]] std::string simulation_json(const SimulationResult& result);

}  // namespace rp
