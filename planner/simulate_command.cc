#include "planner/simulate_command.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/text.h"
#include "roundpipe/error.h"
#include "scheduler/bound/bound_cost.h"
#include "scheduler/bound/bound_planner.h"
#include "scheduler/round_schedule.h"
#include "scheduler/simulator.h"

namespace rp {

namespace {

constexpr std::uint64_t kForeverTasks = 30'000'000;

constexpr double kMiB = 1048576;

std::uint64_t product(std::size_t a, int b) { return std::uint64_t{a} * static_cast<std::uint64_t>(b); }

void check_memory_tasks(std::uint64_t num_tasks) {
  if (num_tasks <= kMaxTasksInMemory) return;
  throw Error(ExitCode::kUsage,
              cat("the memory of ", num_tasks, " tasks would be looked at, and at most ", kMaxTasksInMemory,
                  " are; give fewer \"microbatches\" or longer stages, or leave the keys of memory (\"weights_mib\" "
                  "and the others) out"));
}

// Returns the number of steps whose memory is computed.
int chained_steps(std::uint64_t tasks_of_a_step, bool asynchronous) {
  if (!asynchronous) return 1;
  return static_cast<int>(
      std::clamp<std::uint64_t>(kMaxTasksInMemory / tasks_of_a_step, kMinChainedSteps, kChainedSteps));
}

SimulatedStep round_step(const WorkloadFile& file, const Plan& plan, int round_microbatches, bool asynchronous) {
  Workload workload = file.workload;
  workload.round_microbatches = round_microbatches;
  const std::vector<StageWork> stages = stage_works(workload, plan);
  RoundSimulator simulator(workload);
  SimulatedStep step{.round_microbatches = round_microbatches, .plan = plan};
  step.step_ms = asynchronous ? simulator.period(stages) : simulator.makespan(stages);
  step.bubble = std::max(0.0, 1 - busy_ms_per_gpu(workload, stages) / step.step_ms);  // avoids -0.0 by rounding
  step.lower_bound_ms = lower_bound_ms(workload, stages, asynchronous);
  if (!file.memory.empty()) {
    const std::uint64_t tasks = product(stages.size(), workload.num_microbatches);
    const int num_steps = chained_steps(tasks, asynchronous);
    check_memory_tasks(tasks * static_cast<std::uint64_t>(num_steps));
    const TaskGraph graph = chained_schedule(workload, stages, num_steps);
    step.memory = peaks_of(round_memory(graph, simulate(graph), workload, stages, file.memory));
  }
  return step;
}

SimulatedStep bound_step(const WorkloadFile& file, BoundSchedule schedule, const std::vector<int>& stages) {
  const Workload& workload = file.workload;
  check_bound_stages(schedule, workload, stages);
  const double makespan = BoundCost(schedule, workload, static_cast<int>(stages.size())).makespan(stages);
  // The least possible work: all layers and the head, and a recompute of all layers but not of the
  // head. This is a fused stage of the head alone and one backward stage.
  const int num_layers = workload.num_layers();
  const StageSums sums(workload);
  const double least = busy_ms_per_gpu(workload, {sums.stage(TaskKind::kForward, {0, num_layers}),
                                                  sums.stage(TaskKind::kFused, {num_layers, num_layers + 1}),
                                                  sums.stage(TaskKind::kBackward, {0, num_layers})});
  SimulatedStep step{.step_ms = makespan, .bubble = 1 - least / makespan, .lower_bound_ms = least, .stages = stages};
  if (file.memory.empty()) return step;
  check_memory_tasks(product(stages.size(), workload.num_microbatches) * (schedule == BoundSchedule::kZbH1 ? 3 : 2));
  const TaskGraph graph = bound_schedule(schedule, workload, stages);
  step.memory = peaks_of(bound_memory(graph, simulate(graph), bound_layers(stages), file.memory));
  return step;
}

// Returns numbers of microbatches that give every GPU something to do, if there are any.
std::vector<int> round_choices(const WorkloadFile& file) {
  const Workload& workload = file.workload;
  if (file.gives_round) return {workload.round_microbatches};
  std::vector<int> choices;
  for (int round = std::min(workload.num_gpus, workload.num_microbatches); round <= workload.num_microbatches;
       ++round) {
    if (workload.num_microbatches % round == 0 && workload.num_microbatches / round <= kMaxRounds)
      choices.push_back(round);
  }
  return choices;
}

// Returns the stages in the form of a workload file: the fused stage comes first among the backward
// stages.
nlohmann::json plan_json(const SimulatedStep& step, int num_layers) {
  nlohmann::json forward = nlohmann::json::array(), backward = {num_layers - step.plan.fused_start};
  for (const LayerRange& range : step.plan.forward) forward.push_back(range.end - range.first);
  for (const LayerRange& range : step.plan.backward) backward.push_back(range.end - range.first);
  return {{"forward_stages", forward}, {"backward_stages", backward}, {"round_microbatches", step.round_microbatches}};
}

std::string step_text(const char* name, const SimulatedStep& step) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(4) << std::left << std::setw(14) << name << std::right << std::setw(14)
      << step.step_ms << " ms   bubble " << std::setprecision(2) << std::setw(5) << 100 * step.bubble
      << " %   no schedule of these stages is below " << std::setprecision(4) << step.lower_bound_ms << " ms\n";
  return out.str();
}

std::string memory_text(const char* name, const SimulatedStep& step) {
  if (!step.memory) return "";
  const std::size_t largest = step.memory->largest_gpu();
  std::ostringstream out;
  out << std::fixed << std::setprecision(4) << std::left << std::setw(14) << name << std::right << std::setw(14)
      << step.memory->gpu_bytes[largest] / kGiB << " GiB on GPU " << largest << ", no GPU needs more";
  if (step.round_microbatches > 0) out << "; activations on the host " << step.memory->host_bytes / kGiB << " GiB";
  out << "\n";
  return out.str();
}

// In MiB with three decimals, since the sizes of layers were rounded to bytes.
double mib(double bytes) { return std::round(1000 * bytes / kMiB) / 1000; }

void add_memory(nlohmann::ordered_json& json, const std::string& prefix, const SimulatedStep& step) {
  if (!step.memory) return;
  nlohmann::ordered_json& gpus = json[prefix + "peak_memory_mib"] = nlohmann::ordered_json::array();
  for (const double bytes : step.memory->gpu_bytes) gpus.push_back(mib(bytes));
  if (step.round_microbatches > 0) json[prefix + "host_peak_mib"] = mib(step.memory->host_bytes);
}

std::string plan_line(const char* name, const SimulatedStep& step, int num_layers) {
  return cat(name, stages_text(step, num_layers), "\n");
}

}  // namespace

SimulationResult simulate_file(const WorkloadFile& file, std::optional<BoundSchedule> schedule, Effort effort,
                               const std::function<void(const std::string&)>& found,
                               const std::function<bool()>& stop) {
  SimulationResult result{.schedule = schedule, .num_layers = file.workload.num_layers()};
  if (schedule) {
    result.planned = !file.stages;
    result.synchronous =
        bound_step(file, *schedule, file.stages ? *file.stages : plan_bound_stages(*schedule, file.workload));
    return result;
  }
  if (file.plan) {
    result.synchronous = round_step(file, *file.plan, file.workload.round_microbatches, false);
    result.asynchronous = round_step(file, *file.plan, file.workload.round_microbatches, true);
    return result;
  }
  result.planned = true;
  PlanTask task{.workload = file.workload, .round_choices = round_choices(file), .limits = {}};
  task.limits.least_fused_start = std::max(0, result.num_layers - file.max_fused_layers);
  PlanTask chained = task;
  chained.asynchronous = true;
  PlanChoice alone, in_chain;
  if (effort == Effort::kForever) {
    PlanSearch search(task), search_chained(chained);
    const auto improve = [&](PlanSearch& from, PlanChoice& best, const char* name) {
      from.run(kForeverTasks);
      const PlanChoice next = from.best();
      if (best.round_microbatches != 0 && next.step_ms >= best.step_ms) return;
      best = next;
      const bool is_chained = &from == &search_chained;
      const SimulatedStep step = round_step(file, best.plan, best.round_microbatches, is_chained);
      found(step_text(name, step) + plan_line("              ", step, result.num_layers));
    };
    do {
      improve(search, alone, "synchronous");
      improve(search_chained, in_chain, "asynchronous");
    } while (!stop() && !(search.is_perfect() && search_chained.is_perfect()));
  } else {
    alone = effort == Effort::kFast ? fast_plan(task) : thorough_plan(task);
    in_chain = effort == Effort::kFast ? fast_plan(chained) : thorough_plan(chained);
  }
  result.synchronous = round_step(file, alone.plan, alone.round_microbatches, false);
  result.asynchronous = round_step(file, in_chain.plan, in_chain.round_microbatches, true);
  return result;
}

std::vector<LayerRange> bound_layers(const std::vector<int>& stages) {
  std::vector<LayerRange> layers;
  int first = 0;
  for (const int count : stages) {
    layers.push_back({first, first + count});
    first += count;
  }
  ++layers.back().end;
  return layers;
}

std::size_t StepMemory::largest_gpu() const {
  return static_cast<std::size_t>(std::max_element(gpu_bytes.begin(), gpu_bytes.end()) - gpu_bytes.begin());
}

StepMemory peaks_of(const ScheduleMemory& memory) {
  StepMemory peaks{.host_bytes = peak_bytes(memory.host)};
  for (const std::vector<MemorySample>& gpu : memory.gpus) peaks.gpu_bytes.push_back(peak_bytes(gpu));
  return peaks;
}

std::string stages_text(const SimulatedStep& step, int num_layers) {
  if (step.round_microbatches == 0) return lengths_text(step.stages);
  return cat("rounds of ", step.round_microbatches, "; forward ", lengths_text(step.plan.forward), "; fused ",
             num_layers - step.plan.fused_start, " and the head; backward ", lengths_text(step.plan.backward));
}

std::string simulation_text(const SimulationResult& result) {
  std::string text = step_text(result.schedule ? "step" : "synchronous", result.synchronous);
  if (result.asynchronous) text += step_text("asynchronous", *result.asynchronous);
  text += memory_text(result.schedule ? "step" : "synchronous", result.synchronous);
  if (result.asynchronous) text += memory_text("asynchronous", *result.asynchronous);
  if (!result.planned) return text;
  if (result.schedule)
    return text +
           plan_line("layers of the stages, the last one with the head: ", result.synchronous, result.num_layers);
  return text + plan_line("synchronous:  ", result.synchronous, result.num_layers) +
         plan_line("asynchronous: ", *result.asynchronous, result.num_layers);
}

std::string simulation_json(const SimulationResult& result) {
  nlohmann::ordered_json json;
  json["schedule"] = schedule_name(result.schedule);
  json["makespan_ms"] = result.synchronous.step_ms;
  json["bubble"] = result.synchronous.bubble;
  json["lower_bound_ms"] = result.synchronous.lower_bound_ms;
  if (result.asynchronous) {
    json["period_ms"] = result.asynchronous->step_ms;
    json["async_bubble"] = result.asynchronous->bubble;
    json["async_lower_bound_ms"] = result.asynchronous->lower_bound_ms;
  }
  add_memory(json, "", result.synchronous);
  if (result.asynchronous) add_memory(json, "async_", *result.asynchronous);
  if (result.planned && result.schedule) json["stages"] = result.synchronous.stages;
  if (result.planned && !result.schedule) {
    json["plan"] = plan_json(result.synchronous, result.num_layers);
    json["async_plan"] = plan_json(*result.asynchronous, result.num_layers);
  }
  return json.dump() + "\n";
}

}  // namespace rp
