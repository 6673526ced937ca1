// rp-launch: runs a program as one coordinator and its workers. docs/launcher.md.

#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>
#include <vector>

#include "common/program_main.h"
#include "common/text.h"
#include "launcher/doctor/doctor.h"
#include "launcher/events/signal_reader.h"
#include "launcher/hosts/mpi_parent.h"
#include "launcher/hosts/mpirun_command.h"
#include "launcher/hosts_doctor/hosts_doctor.h"
#include "launcher/launch_plan.h"
#include "launcher/machine/mpi_job.h"
#include "launcher/nodes_run.h"
#include "launcher/options/options.h"
#include "launcher/options/replay_options.h"
#include "launcher/supervisor.h"
#include "launcher/view/ctl.h"
#include "launcher/view/ps.h"
#include "roundpipe/error.h"

namespace {

std::filesystem::path own_directory() {
  std::error_code failed;
  return std::filesystem::read_symlink("/proc/self/exe", failed).parent_path();
}

int launch_on_hosts(const rp::LaunchOptions& options) {
  if (rp::num_nodes_of_job() > 1) {
    throw rp::Error(rp::ExitCode::kUsage,
                    "--hosts inside a job of MPI: mpirun or srun has chosen the hosts; leave the option out");
  }
  const rp::NodesCommand command{.hosts = options.hosts,
                                 .rp_launch = own_directory() / "rp-launch",
                                 .options = options.options_of_node,
                                 .command = options.command,
                                 .uses_gpus = options.gpus.has_value(),
                                 .variables = rp::passed_variables(),
                                 .timeout_seconds = *options.settings.completed({}).node_timeout_seconds};
  if (!options.dry_run) {
    return rp::run_on_hosts({.command = command,
                             .max_restarts = options.restarts_nodes ? options.max_restarts : 0,
                             .time_limit_seconds = options.time_limit_seconds});
  }
  std::string text;
  for (const std::string& word : rp::mpirun_arguments(command)) text += rp::cat(text.empty() ? "" : " ", word);
  return rp::print_output(text + "\n");
}

int run_doctor(const rp::DoctorOptions& options, const std::string& library_path) {
  if (options.host_part != rp::DoctorOptions::HostPart::kNone)
    return rp::run_host_part(options.host_part, own_directory(), library_path);
  if (!options.hosts.empty() && !options.help) return rp::run_hosts_doctor(options, own_directory());
  return rp::run_doctor(options, own_directory(), library_path);
}

int launch(const std::vector<std::string>& arguments) {
  const std::string library_path = rp::environment_value("LD_LIBRARY_PATH").value_or("");
  if (!arguments.empty()) {
    const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
    const std::string& command = arguments[0];
    if (command == "doctor") return run_doctor(rp::parse_doctor_options(rest), library_path);
    if (command == "ctl") return rp::run_control(rp::parse_control_options(rest));
    if (command == "ps" || command == "top")
      return rp::run_view(rp::parse_view_options(command == "top", rest), own_directory());
  }
  rp::keep_early_signals();
  const bool is_replay = !arguments.empty() && arguments[0] == "replay";
  const rp::LaunchOptions options = is_replay ? rp::parse_replay_options({arguments.begin() + 1, arguments.end()})
                                              : rp::parse_launch_options(arguments);
  if (options.action == rp::LaunchOptions::Action::kHelp)
    return rp::print_output(is_replay ? rp::replay_help() : rp::launch_help());
  if (options.action == rp::LaunchOptions::Action::kVersion)
    return rp::print_output(rp::cat("rp-launch ", RP_VERSION, "\n"));
  if (!options.hosts.empty()) return launch_on_hosts(options);
  rp::LaunchPlan plan =
      rp::make_launch_plan(options, rp::observe_machine(options.gpus.has_value()), own_directory(), library_path);
  for (const std::string& note : plan.notes) std::cerr << "rp-launch: note: " << note << "\n";
  if (options.dry_run) return rp::print_output(rp::launch_plan_table(plan));
  const bool is_one_of_several = plan.num_nodes > 1;
  const int code = rp::Supervisor(std::move(plan)).run();
  if (is_one_of_several && code != 0) rp::end_mpi_parent(code);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  return rp::run_program("rp-launch", [&] { return launch({argv + 1, argv + argc}); });
}
