// rp-launch: runs a program as one coordinator and its workers. docs/launcher.md.

#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>
#include <vector>

#include "common/program_main.h"
#include "common/text.h"
#include "launcher/doctor/doctor.h"
#include "launcher/launch_plan.h"
#include "launcher/options/options.h"
#include "launcher/options/replay_options.h"
#include "launcher/supervisor.h"
#include "launcher/view/ctl.h"
#include "launcher/view/ps.h"

namespace {

std::filesystem::path own_directory() {
  std::error_code failed;
  return std::filesystem::read_symlink("/proc/self/exe", failed).parent_path();
}

int launch(const std::vector<std::string>& arguments) {
  const std::string library_path = rp::environment_value("LD_LIBRARY_PATH").value_or("");
  if (!arguments.empty()) {
    const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
    const std::string& command = arguments[0];
    if (command == "doctor") return rp::run_doctor(rp::parse_doctor_options(rest), own_directory(), library_path);
    if (command == "ctl") return rp::run_control(rp::parse_control_options(rest));
    if (command == "ps" || command == "top") return rp::run_view(rp::parse_view_options(command == "top", rest));
  }
  const bool is_replay = !arguments.empty() && arguments[0] == "replay";
  const rp::LaunchOptions options = is_replay ? rp::parse_replay_options({arguments.begin() + 1, arguments.end()})
                                              : rp::parse_launch_options(arguments);
  if (options.action == rp::LaunchOptions::Action::kHelp)
    return rp::print_output(is_replay ? rp::replay_help() : rp::launch_help());
  if (options.action == rp::LaunchOptions::Action::kVersion)
    return rp::print_output(rp::cat("rp-launch ", RP_VERSION, "\n"));
  rp::LaunchPlan plan =
      rp::make_launch_plan(options, rp::observe_machine(options.gpus.has_value()), own_directory(), library_path);
  if (!plan.note.empty()) std::cerr << "rp-launch: note: " << plan.note << "\n";
  if (options.dry_run) return rp::print_output(rp::launch_plan_table(plan));
  rp::Supervisor supervisor(std::move(plan));
  return supervisor.run();
}

}  // namespace

int main(int argc, char** argv) {
  return rp::run_program("rp-launch", [&] { return launch({argv + 1, argv + argc}); });
}
