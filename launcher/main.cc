// rp-launch: runs a program as one coordinator and its workers. docs/launcher.md.

#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>
#include <vector>

#include "common/text.h"
#include "launcher/launch_plan.h"
#include "launcher/options.h"
#include "launcher/supervisor.h"
#include "roundpipe/error.h"

namespace {

std::filesystem::path own_directory() {
  std::error_code failed;
  return std::filesystem::read_symlink("/proc/self/exe", failed).parent_path();
}

int print(const std::string& text) {
  std::cout << text << std::flush;
  return std::cout ? 0 : static_cast<int>(rp::ExitCode::kOutputFailed);
}

int launch(const std::vector<std::string>& arguments) {
  const rp::LaunchOptions options = rp::parse_launch_options(arguments);
  if (options.action == rp::LaunchOptions::Action::kHelp) return print(rp::launch_help());
  if (options.action == rp::LaunchOptions::Action::kVersion) return print(rp::cat("rp-launch ", RP_VERSION, "\n"));
  rp::LaunchPlan plan = rp::make_launch_plan(options, rp::observe_machine(), own_directory());
  if (options.dry_run) return print(rp::launch_plan_table(plan));
  rp::Supervisor supervisor(std::move(plan));
  return supervisor.run();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return launch({argv + 1, argv + argc});
  } catch (const rp::Error& error) {
    std::cerr << "rp-launch: " << error.what() << "\n";
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << "rp-launch: internal error: " << error.what() << "; please report it\n";
    return static_cast<int>(rp::ExitCode::kLauncherFailed);
  }
}
