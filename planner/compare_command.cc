#include "planner/compare_command.h"

#include <algorithm>
#include <array>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/text.h"
#include "planner/timeline/memory_strip.h"
#include "planner/timeline/simulated_timeline.h"
#include "roundpipe/error.h"
#include "scheduler/round_schedule.h"

namespace rp {

namespace {

constexpr std::array<std::optional<BoundSchedule>, 6> kComparedSchedules = {
    BoundSchedule::kGPipe,     BoundSchedule::k1F1B, BoundSchedule::kInterleaved,
    BoundSchedule::kLoopedBfs, BoundSchedule::kZbH1, std::nullopt};
// The chained steps that are drawn. More steps follow, which GPUs begin when they have finished
// these two.
constexpr int kFirstDrawnStep = 6, kLastDrawnStep = 7;

const char* what_it_does(std::optional<BoundSchedule> schedule) {
  if (!schedule) return "Slots of the plan go to the GPUs in turn; no stage is bound to a GPU.";
  switch (*schedule) {
    case BoundSchedule::kGPipe: return "One stage a GPU; all forwards, then all backwards.";
    case BoundSchedule::k1F1B: return "One stage a GPU; one forward, one backward.";
    case BoundSchedule::kInterleaved: return "1F1B with several stages a GPU.";
    case BoundSchedule::kLoopedBfs: return "GPipe with several stages a GPU, breadth first.";
    case BoundSchedule::kZbH1: return "1F1B, with backwards split into input and weight gradients.";
  }
  return "";
}

// One line of the table: a step or a refusal.
struct Row {
  std::string name{};
  const SimulatedStep* step = nullptr;  // nullptr: there is a refusal
  std::string refusal{};
  int num_layers = 0;
};

// Returns the rows of a schedule. They point into `schedule`.
std::vector<Row> rows_of(const ComparedSchedule& schedule) {
  const std::string name = schedule_name(schedule.schedule);
  if (!schedule.result) return {{.name = name, .refusal = schedule.refusal}};
  const SimulationResult& result = *schedule.result;
  std::vector<Row> rows = {{.name = name, .step = &result.synchronous, .num_layers = result.num_layers}};
  if (result.asynchronous)
    rows.push_back({.name = name + " async", .step = &*result.asynchronous, .num_layers = result.num_layers});
  return rows;
}

std::vector<Row> rows_of(const std::vector<ComparedSchedule>& schedules) {
  std::vector<Row> rows;
  for (const ComparedSchedule& each : schedules) {
    for (const Row& row : rows_of(each)) rows.push_back(row);
  }
  return rows;
}

// Returns true if the steps have memory; either all have it or none.
bool any_memory(const std::vector<Row>& rows) {
  return std::any_of(rows.begin(), rows.end(),
                     [](const Row& row) { return row.step != nullptr && row.step->memory.has_value(); });
}
std::string gib(double bytes) { return decimal(bytes / kGiB, 3); }
std::string gpu_gib(const SimulatedStep& step) { return gib(step.memory->gpu_bytes[step.memory->largest_gpu()]); }
std::string host_gib(const SimulatedStep& step) {
  return step.round_microbatches > 0 ? gib(step.memory->host_bytes) : "-";
}

std::uint64_t product(std::size_t a, int b, int c) {
  return std::uint64_t{a} * static_cast<std::uint64_t>(b) * static_cast<std::uint64_t>(c);
}

std::uint64_t drawn_tasks(const Workload& workload, std::optional<BoundSchedule> schedule, const SimulatedStep& step,
                          bool asynchronous) {
  if (schedule)
    return product(step.stages.size(), workload.num_microbatches, *schedule == BoundSchedule::kZbH1 ? 3 : 2);
  return product(stage_works(workload, step.plan).size(), workload.num_microbatches, asynchronous ? kChainedSteps : 1);
}

// Throws if there are too many tasks to draw, so that the page and the data from which it is made
// fit into memory.
void check_size(const Workload& workload, const std::vector<ComparedSchedule>& schedules) {
  std::uint64_t all = 0;
  const auto add = [&all](std::uint64_t num_tasks, const std::string& name) {
    all += num_tasks;
    if (all <= kMaxDrawnTasks) return;
    throw Error(ExitCode::kUsage,
                cat("--html: ",
                    all == num_tasks ? cat(name, " has ", num_tasks) : cat("the schedules up to ", name, " have ", all),
                    " tasks to draw, and a page has at most ", kMaxDrawnTasks,
                    "; give fewer \"microbatches\" or \"layers\", or leave --html out"));
  };
  for (const ComparedSchedule& each : schedules) {
    if (!each.result) continue;
    const std::string name = schedule_name(each.schedule);
    add(drawn_tasks(workload, each.schedule, each.result->synchronous, false), name);
    if (each.result->asynchronous) add(drawn_tasks(workload, each.schedule, *each.result->asynchronous, true), name);
  }
}

// The amounts that a strip of full height stands for, the same for all schedules.
struct StripScale {
  double gpu_bytes = 0, host_bytes = 0;
};

StripScale strip_scale(const std::vector<Row>& rows) {
  StripScale scale;
  for (const Row& row : rows) {
    if (row.step == nullptr || !row.step->memory) continue;
    const StepMemory& memory = *row.step->memory;
    scale.gpu_bytes = std::max(scale.gpu_bytes, memory.gpu_bytes[memory.largest_gpu()]);
    scale.host_bytes = std::max(scale.host_bytes, memory.host_bytes);
  }
  return scale;
}

// Returns the strips of the GPU with the largest peak, and of the host.
std::vector<TimelineStrip> strips_of(const ScheduleMemory& memory, const StripScale& scale) {
  const std::size_t gpu = peaks_of(memory).largest_gpu();
  std::vector<TimelineStrip> strips = {memory_strip(cat("GPU ", gpu, " memory"), memory.gpus[gpu], scale.gpu_bytes)};
  if (!memory.host.empty()) strips.push_back(memory_strip("host activations", memory.host, scale.host_bytes));
  return strips;
}

TimelineSection bound_section(const WorkloadFile& file, BoundSchedule schedule, const SimulatedStep& step,
                              const StripScale& scale) {
  const Workload& workload = file.workload;
  const TaskGraph graph = bound_schedule(schedule, workload, step.stages);
  const Timeline timeline = simulate(graph);
  const std::vector<LayerRange> stages = bound_layers(step.stages);
  TimelineSection section =
      simulated_section(graph, timeline, stages, workload.num_layers(), 0, timeline.makespan, false);
  if (!file.memory.empty()) section.strips = strips_of(bound_memory(graph, timeline, stages, file.memory), scale);
  return section;
}

TimelineSection round_section(const WorkloadFile& file, const SimulatedStep& step, bool asynchronous,
                              const StripScale& scale) {
  Workload workload = file.workload;
  workload.round_microbatches = step.round_microbatches;
  const std::vector<StageWork> stages = stage_works(workload, step.plan);
  std::vector<LayerRange> layers;
  for (const StageWork& stage : stages) layers.push_back(stage.layers);
  const TaskGraph graph = chained_schedule(workload, stages, asynchronous ? kChainedSteps : 1);
  const Timeline timeline = simulate(graph);
  const double first = asynchronous ? end_of_step(graph, timeline, kFirstDrawnStep - 1) : 0;
  const double end = asynchronous ? end_of_step(graph, timeline, kLastDrawnStep) : timeline.makespan;
  TimelineSection section =
      simulated_section(graph, timeline, layers, workload.num_layers(), first, end - first, asynchronous);
  if (!file.memory.empty())
    section.strips = strips_of(round_memory(graph, timeline, workload, stages, file.memory), scale);
  return section;
}

void describe(TimelineSection& section, const Row& row, const char* what, int num_gpus) {
  section.title = row.name;
  section.figures = {{"step", decimal(row.step->step_ms, 4) + " ms"},
                     {"bubble", decimal(100 * row.step->bubble, 2) + " %"},
                     {"no schedule of these stages is below", decimal(row.step->lower_bound_ms, 4) + " ms"}};
  section.caption = what;
  if (num_gpus > kMaxDrawnGpus)
    section.caption += cat(" Drawn are the first ", kMaxDrawnGpus, " of ", num_gpus, " GPUs.");
}

}  // namespace

std::vector<ComparedSchedule> compare_schedules(const WorkloadFile& file, Effort effort) {
  std::vector<ComparedSchedule> schedules;
  for (const std::optional<BoundSchedule>& schedule : kComparedSchedules) {
    ComparedSchedule& each = schedules.emplace_back(ComparedSchedule{.schedule = schedule});
    try {
      each.result = simulate_file(
          file, schedule, effort, [](const std::string&) {}, [] { return true; });
    } catch (const Error& error) {
      if (!schedule || error.code() != ExitCode::kUsage) throw;
      each.refusal = error.what();
    }
  }
  return schedules;
}

std::string comparison_text(const std::vector<ComparedSchedule>& schedules) {
  std::ostringstream out;
  out << std::left << std::setw(16) << "schedule" << std::right << std::setw(14) << "step ms" << std::setw(10)
      << "bubble %" << std::setw(16) << "lower bound ms";
  const std::vector<Row> rows = rows_of(schedules);
  const bool has_memory = any_memory(rows);
  if (has_memory) out << std::setw(11) << "GiB a GPU" << std::setw(10) << "host GiB";
  out << "  stages\n";
  for (const Row& row : rows) {
    out << std::left << std::setw(16) << row.name << std::right;
    if (row.step == nullptr) {
      out << std::setw(14) << "-" << std::setw(10) << "-" << std::setw(16) << "-";
      if (has_memory) out << std::setw(11) << "-" << std::setw(10) << "-";
      out << "  " << row.refusal << "\n";
      continue;
    }
    out << std::setw(14) << decimal(row.step->step_ms, 4) << std::setw(10) << decimal(100 * row.step->bubble, 2)
        << std::setw(16) << decimal(row.step->lower_bound_ms, 4);
    if (has_memory) out << std::setw(11) << gpu_gib(*row.step) << std::setw(10) << host_gib(*row.step);
    out << "  " << stages_text(*row.step, row.num_layers) << "\n";
  }
  return out.str();
}

std::string comparison_json(const std::vector<ComparedSchedule>& schedules) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ComparedSchedule& each : schedules) {
    if (each.result) {
      list.push_back(nlohmann::ordered_json::parse(simulation_json(*each.result)));
    } else {
      list.push_back({{"schedule", schedule_name(each.schedule)}, {"refusal", each.refusal}});
    }
  }
  return nlohmann::ordered_json{{"schedules", list}}.dump() + "\n";
}

TimelinePage comparison_page(const WorkloadFile& file, const std::vector<ComparedSchedule>& schedules,
                             const std::string& title) {
  const Workload& workload = file.workload;
  check_size(workload, schedules);
  TimelinePage page{.title = title};
  page.facts = {{"GPUs", cat(workload.num_gpus)},
                {"microbatches", cat(workload.num_microbatches)},
                {"layers", cat(workload.num_layers(), " and a head")},
                {"hop", cat(workload.hop, " ms")}};
  page.columns = {"schedule", "step ms", "bubble %", "bound ms"};
  const std::vector<Row> all_rows = rows_of(schedules);
  const StripScale scale = strip_scale(all_rows);
  const bool has_memory = any_memory(all_rows);
  if (has_memory) page.columns.emplace_back("GiB a GPU");
  for (const Row& row : all_rows) {
    if (row.step == nullptr) {
      page.records.push_back({.cells = std::vector<std::string>(page.columns.size(), "-"), .note = row.refusal});
      page.records.back().cells.front() = row.name;
      continue;
    }
    std::vector<std::string> cells = {row.name, decimal(row.step->step_ms, 4), decimal(100 * row.step->bubble, 2),
                                      decimal(row.step->lower_bound_ms, 4)};
    if (has_memory) cells.push_back(gpu_gib(*row.step));
    page.records.push_back({.cells = std::move(cells),
                            .note = (row.step->round_microbatches == 0 ? "layers of the stages " : "") +
                                    stages_text(*row.step, row.num_layers)});
  }
  for (const ComparedSchedule& each : schedules) {
    if (!each.result) continue;
    const std::vector<Row> rows = rows_of(each);
    const SimulationResult& result = *each.result;
    const char* what = what_it_does(each.schedule);
    TimelineSection& first =
        page.sections.emplace_back(each.schedule ? bound_section(file, *each.schedule, result.synchronous, scale)
                                                 : round_section(file, result.synchronous, false, scale));
    describe(first, rows.front(), what, workload.num_gpus);
    if (!result.asynchronous) continue;
    TimelineSection& chained = page.sections.emplace_back(round_section(file, *result.asynchronous, true, scale));
    describe(chained, rows.back(), "", workload.num_gpus);
    chained.caption = cat(
        "A window of chained steps: from the end of step ", kFirstDrawnStep - 1, " to the end of step ", kLastDrawnStep,
        ", two steps long. A step's weights are those of the step before the last, so steps overlap.", chained.caption);
  }
  return page;
}

}  // namespace rp
