#include "launcher/launch_plan.h"

#include <algorithm>
#include <sstream>

#include "common/text.h"
#include "hoststore/control.h"
#include "launcher/machine/mpi_job.h"
#include "launcher/machine/program_path.h"
#include "launcher/process/process_role.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr const char* kVisibleDevicesVariable = "CUDA_VISIBLE_DEVICES";
constexpr const char* kMaxConnectionsVariable = "CUDA_DEVICE_MAX_CONNECTIONS";

bool wants_binding(const LaunchOptions& options, const LocalMachine& machine) {
  if (options.bind) return *options.bind == "numa";
  return machine.nodes.size() > 1;
}

Variables shared_variables(const LaunchOptions& options, int num_workers) {
  Variables variables = options.settings.variables();
  variables.emplace_back(kWorkersVariable, std::to_string(num_workers));
  return variables;
}

// Returns one GPU for each worker, or none if the device is not "cuda".
GpuChoice chosen_gpus(const LaunchOptions& options, const LocalMachine& machine,
                      const std::filesystem::path& own_directory, const std::string& library_path) {
  if (!options.gpus) return {};
  const std::string& asked = options.gpus->asked;
  if (find_cuda_plugin(own_directory, library_path).empty()) {
    throw Error(ExitCode::kNoResource, cat(asked, ": this build has no CUDA device: ", kCudaPlugin,
                                           " is neither next to rp-launch nor in the library directory; build it where "
                                           "nvcc is: scripts/build.sh release programs; or use --device cpu instead"));
  }
  GpuChoice choice = choose_gpus(*options.gpus, machine.gpus, machine.cuda);
  const std::size_t workers = options.workers ? static_cast<std::size_t>(*options.workers) : choice.gpus.size();
  if (workers != choice.gpus.size()) {
    throw Error(ExitCode::kUsage,
                cat(asked, " gives ", choice.gpus.size(), " workers, one for each GPU, and --workers is ", workers,
                    "; leave --workers out, or name a GPU several times for several workers on it"));
  }
  return choice;
}

int num_sharers(const std::vector<Gpu>& gpus, const Gpu& of) {
  return static_cast<int>(std::count_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) { return gpu.uuid == of.uuid; }));
}

// The smallest share of a GPU's memory that any worker has, in bytes.
std::uint64_t least_memory(const std::vector<Gpu>& gpus) {
  std::uint64_t least = UINT64_MAX;
  for (const Gpu& gpu : gpus)
    least = std::min(least, gpu.memory_bytes / static_cast<std::uint64_t>(num_sharers(gpus, gpu)));
  return least;
}

void add_gpu(const std::vector<Gpu>& gpus, std::size_t worker, const std::string& signals, const LocalMachine& machine,
             PlannedProcess& process) {
  process.gpu = cat(gpus[worker].index, " ", gpus[worker].name);
  process.variables.emplace_back(kGpuVariable, gpus[worker].uuid);
  process.variables.emplace_back(kVisibleDevicesVariable, visible_devices(gpus, worker, signals));
  process.variables.emplace_back(kGpuSharersVariable, std::to_string(num_sharers(gpus, gpus[worker])));
  // A worker has about ten streams. With the driver's default of 8 queues some would wait for each
  // other.
  if (!machine.sets_max_connections) process.variables.emplace_back(kMaxConnectionsVariable, "32");
}

std::vector<CpuList> bound_cpus(const LocalMachine& machine, const std::vector<Gpu>& gpus, int num_workers) {
  if (gpus.empty()) return spread_workers(machine.nodes, num_workers);
  std::vector<int> node_of_worker;
  for (const Gpu& gpu : gpus) node_of_worker.push_back(gpu.numa_node);
  return place_beside_gpus(machine.nodes, node_of_worker);
}

PlannedProcess planned_worker(const Variables& shared, int worker, int num_threads) {
  PlannedProcess process{
      .name = cat("worker ", worker), .board_index = 1 + worker, .variables = shared, .cpus = {}, .gpu = {}};
  process.variables.emplace_back(kRoleVariable, "worker");
  process.variables.emplace_back(kWorkerVariable, std::to_string(worker));
  const std::string threads = std::to_string(num_threads);
  process.variables.emplace_back("OMP_NUM_THREADS", threads);
  process.variables.emplace_back("MKL_NUM_THREADS", threads);
  return process;
}

void add_tool(const DebugTool& tool, const std::filesystem::path& own_directory, LaunchPlan& plan) {
  const auto place = static_cast<std::size_t>(tool.worker) + 1;
  if (place >= plan.processes.size()) {
    throw Error(ExitCode::kUsage, cat("--debug-worker ", tool.worker, ": there is no such worker, the last one is ",
                                      plan.processes.size() - 2));
  }
  PlannedProcess& process = plan.processes[place];
  process.tool = tool.command;
  try {
    process.tool[0] = find_program(tool.command[0], own_directory, environment_value("PATH").value_or("")).string();
  } catch (const Error& error) {
    throw Error(error.code(), cat("--debug-worker ", tool.worker, ": ", error.what()));
  }
}

std::string variables_text(const Variables& variables) {
  std::string text;
  for (const auto& [name, value] : variables) text += cat(text.empty() ? "" : " ", name, "=", value);
  return text;
}

std::string command_text(const LaunchPlan& plan, const PlannedProcess& process) {
  std::string text;
  for (const std::string& word : process.tool) text += word + " ";
  text += plan.program.string();
  for (std::size_t i = 1; i < plan.command.size(); ++i) text += " " + plan.command[i];
  return text;
}

}  // namespace

LocalMachine observe_machine(bool with_gpus) {
  return LocalMachine{.usable_cores = usable_cores(),
                      .nodes = numa_nodes(allowed_cpus()),
                      .gpus = with_gpus ? observe_gpus() : GpuSystem{},
                      .cuda = CudaVariables::of_this_process(),
                      .sets_max_connections = environment_value(kMaxConnectionsVariable).has_value(),
                      .num_nodes = num_nodes_of_job()};
}

LaunchPlan make_launch_plan(const LaunchOptions& options, const LocalMachine& machine,
                            const std::filesystem::path& own_directory, const std::string& library_path) {
  LaunchPlan plan;
  plan.program = find_program(options.command[0], own_directory, environment_value("PATH").value_or(""));
  plan.command = options.command;
  plan.tag_output = options.tag_output;
  plan.timestamp_output = options.timestamp_output;
  plan.on_worker_failure = options.on_worker_failure;
  plan.num_nodes = machine.num_nodes;
  // All nodes would have to connect their GPUs again.
  const bool exchanges_on_gpus = options.settings.reduce == "nccl";
  if (exchanges_on_gpus && plan.num_nodes > 1) plan.on_worker_failure = WorkerFailurePolicy::kAbort;
  // The other nodes cannot go on without a coordinator that has died.
  plan.restarts_coordinator = options.restarts_coordinator && plan.num_nodes == 1;
  plan.max_restarts = options.max_restarts;
  plan.time_limit_seconds = options.time_limit_seconds;
  plan.attaches_on_fault = options.settings.attach_on_fault.value_or(false);
  plan.log_dir = options.log_dir.value_or("");
  const GpuChoice choice = chosen_gpus(options, machine, own_directory, library_path);
  const std::vector<Gpu>& gpus = choice.gpus;
  if (!choice.note.empty()) plan.notes.push_back(choice.note);
  // With --dry-run, this may be one of several nodes that is asked alone; a task may be replayed that is from several.
  const bool is_alone = plan.num_nodes == 1 && !options.dry_run && options.task_file.empty();
  if (is_alone && options.settings.network) plan.notes.emplace_back("--network has no effect on one node");
  if (is_alone && exchanges_on_gpus) plan.notes.emplace_back("--reduce has no effect on one node");
  const int num_workers = !gpus.empty() ? static_cast<int>(gpus.size())
                                        : options.workers.value_or(std::min(machine.usable_cores, kMaxWorkers));
  const Variables shared = shared_variables(options, num_workers);
  PlannedProcess coordinator{.name = "coordinator", .board_index = 0, .variables = shared, .cpus = {}, .gpu = {}};
  coordinator.variables.emplace_back(kRoleVariable, "coordinator");
  if (plan.num_nodes > 1) coordinator.variables.emplace_back(kNodesVariable, std::to_string(plan.num_nodes));
  if (!options.task_file.empty()) coordinator.variables.emplace_back(kTaskFileVariable, options.task_file.string());
  // The coordinator holds no CUDA context, and code that the program calls in it must not make one.
  if (!gpus.empty()) {
    coordinator.variables.emplace_back(kVisibleDevicesVariable, "");
    coordinator.variables.emplace_back(kGpuBytesVariable, std::to_string(least_memory(gpus)));
  }
  plan.processes.push_back(std::move(coordinator));
  const RuntimeSettings settings = options.settings.completed({});
  for (int w = 0; w < num_workers; ++w) {
    plan.processes.push_back(planned_worker(shared, w, *settings.threads_per_worker));
    if (!gpus.empty()) {
      add_gpu(gpus, static_cast<std::size_t>(w), *settings.signals, machine, plan.processes.back());
    }
  }
  if (options.debug_tool) add_tool(*options.debug_tool, own_directory, plan);
  if (wants_binding(options, machine)) {
    const std::vector<CpuList> places = bound_cpus(machine, gpus, num_workers);
    for (std::size_t w = 0; w < places.size(); ++w) plan.processes[1 + w].cpus = places[w];
  }
  return plan;
}

std::string launch_plan_table(const LaunchPlan& plan) {
  std::size_t name_width = 7;
  std::size_t cpu_width = 5;
  std::size_t gpu_width = 0;  // no GPUs
  for (const PlannedProcess& process : plan.processes) {
    name_width = std::max(name_width, process.name.size());
    cpu_width = std::max(cpu_width, cpu_text(process.cpus).size());
    gpu_width = std::max(gpu_width, process.gpu.size());
  }
  std::ostringstream out;
  const auto cell = [&out](const std::string& text, std::size_t width) {
    out << text << std::string(width - text.size() + 2, ' ');
  };
  cell("process", name_width);
  cell("cores", cpu_width);
  if (gpu_width > 0) cell("GPU", gpu_width);
  out << kPlanTableHeading << "\n";
  for (const PlannedProcess& process : plan.processes) {
    cell(process.name, name_width);
    cell(cpu_text(process.cpus), cpu_width);
    if (gpu_width > 0) cell(process.gpu.empty() ? "-" : process.gpu, gpu_width);
    out << variables_text(process.variables) << " " << command_text(plan, process) << "\n";
  }
  return out.str();
}

}  // namespace rp
