#include "launcher/launch_plan.h"

#include <algorithm>
#include <sstream>

#include "common/text.h"
#include "hoststore/control.h"
#include "launcher/process_role.h"
#include "launcher/program_path.h"

namespace rp {

namespace {

bool wants_binding(const LaunchOptions& options, const LocalMachine& machine) {
  if (options.bind) return *options.bind == "numa";
  return machine.nodes.size() > 1;
}

Variables shared_variables(const LaunchOptions& options, int num_workers) {
  Variables variables = options.settings.variables();
  variables.emplace_back(kWorkersVariable, std::to_string(num_workers));
  return variables;
}

PlannedProcess planned_worker(const LaunchOptions& options, const Variables& shared, int worker) {
  PlannedProcess process{.name = cat("worker ", worker), .board_index = 1 + worker, .variables = shared, .cpus = {}};
  process.variables.emplace_back(kRoleVariable, "worker");
  process.variables.emplace_back(kWorkerVariable, std::to_string(worker));
  const std::string threads = std::to_string(options.settings.threads_per_worker.value_or(1));
  process.variables.emplace_back("OMP_NUM_THREADS", threads);
  process.variables.emplace_back("MKL_NUM_THREADS", threads);
  return process;
}

// "0-3,8".
std::string cpu_text(const CpuList& cpus) {
  if (cpus.empty()) return "any";
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    text += cat(text.empty() ? "" : ",", cpus[i]);
    if (end > i + 1) text += cat("-", cpus[end - 1]);
    i = end;
  }
  return text;
}

std::string variables_text(const Variables& variables) {
  std::string text;
  for (const auto& [name, value] : variables) text += cat(text.empty() ? "" : " ", name, "=", value);
  return text;
}

std::string command_text(const LaunchPlan& plan) {
  std::string text = plan.program.string();
  for (std::size_t i = 1; i < plan.command.size(); ++i) text += " " + plan.command[i];
  return text;
}

}  // namespace

LocalMachine observe_machine() {
  return LocalMachine{.usable_cores = usable_cores(), .nodes = cpus_by_node(allowed_cpus())};
}

LaunchPlan make_launch_plan(const LaunchOptions& options, const LocalMachine& machine,
                            const std::filesystem::path& own_directory) {
  LaunchPlan plan;
  plan.program = find_program(options.command[0], own_directory, environment_value("PATH").value_or(""));
  plan.command = options.command;
  plan.tag_output = options.tag_output;
  plan.log_dir = options.log_dir.value_or("");
  const int num_workers = options.workers.value_or(std::min(machine.usable_cores, kMaxWorkers));
  const Variables shared = shared_variables(options, num_workers);
  PlannedProcess coordinator{.name = "coordinator", .board_index = 0, .variables = shared, .cpus = {}};
  coordinator.variables.emplace_back(kRoleVariable, "coordinator");
  plan.processes.push_back(std::move(coordinator));
  for (int w = 0; w < num_workers; ++w) plan.processes.push_back(planned_worker(options, shared, w));
  if (wants_binding(options, machine)) {
    const std::vector<CpuList> places = spread_workers(machine.nodes, num_workers);
    for (std::size_t w = 0; w < places.size(); ++w) plan.processes[1 + w].cpus = places[w];
  }
  return plan;
}

std::string launch_plan_table(const LaunchPlan& plan) {
  std::size_t name_width = 7;
  std::size_t cpu_width = 5;
  for (const PlannedProcess& process : plan.processes) {
    name_width = std::max(name_width, process.name.size());
    cpu_width = std::max(cpu_width, cpu_text(process.cpus).size());
  }
  std::ostringstream out;
  const auto cell = [&out](const std::string& text, std::size_t width) {
    out << text << std::string(width - text.size() + 2, ' ');
  };
  cell("process", name_width);
  cell("cores", cpu_width);
  out << "environment and command\n";
  for (const PlannedProcess& process : plan.processes) {
    cell(process.name, name_width);
    cell(cpu_text(process.cpus), cpu_width);
    out << variables_text(process.variables) << " " << command_text(plan) << "\n";
  }
  return out.str();
}

}  // namespace rp
