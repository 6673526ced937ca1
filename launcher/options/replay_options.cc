#include "launcher/options/replay_options.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "common/bad_input.h"
#include "common/text.h"
#include "hoststore/task_file/task_file.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

// The file names a program that is going to be run.
void check_owner(const std::filesystem::path& file) {
  struct stat status {};
  if (stat(file.c_str(), &status) != 0) throw bad_input(file, errno_text(errno));
  if (status.st_uid != geteuid()) {
    throw bad_input(file, "belongs to user ", status.st_uid,
                    ", and it names a program to run; if you trust it, make a copy of your own");
  }
}

}  // namespace

LaunchOptions parse_replay_options(const std::vector<std::string>& arguments) {
  // One worker, whose death is the result.
  std::vector<std::string> words = {"--workers", "1", "--on-worker-failure", "abort"};
  const bool file_is_first = !arguments.empty() && !arguments.front().starts_with('-');
  words.insert(words.end(), arguments.begin() + (file_is_first ? 1 : 0), arguments.end());
  if (file_is_first) words.push_back(arguments.front());
  if (arguments.empty())
    throw Error(ExitCode::kUsage, "rp-launch replay needs the file of a task; see rp-launch replay --help");
  LaunchOptions options = parse_launch_options(words);
  if (options.action != LaunchOptions::Action::kRun) return options;
  if (options.command.size() != 1) {
    throw Error(ExitCode::kUsage, cat("rp-launch replay takes one file, and no program: \"", options.command[0],
                                      "\" is followed by \"", options.command[1], "\""));
  }
  std::error_code failed;
  const std::filesystem::path file = std::filesystem::absolute(options.command[0], failed);
  check_owner(file);
  const TaskFileInfo info = read_task_info(file);
  for (const auto& [name, value] : info.variables) setenv(name.c_str(), value.c_str(), /*overwrite=*/0);
  options = parse_launch_options(words);  // with the variables
  options.command = {info.program.string()};
  options.command.insert(options.command.end(), info.arguments.begin(), info.arguments.end());
  options.task_file = file;
  if (options.log_dir) options.log_dir = std::filesystem::absolute(*options.log_dir, failed).string();
  std::filesystem::current_path(info.directory, failed);
  if (failed)
    throw bad_input(file, "the task was computed in ", info.directory.string(),
                    ", which is not there: ", failed.message());
  return options;
}

std::string replay_help() {
  return "usage: rp-launch replay [options] FILE\n\n"
         "Computes a task alone, in one worker, that has ended the workers of a run. The run has written it to FILE, "
         "with\n"
         "its weights and inputs. The program is started with the arguments that it had in the run. Options are those "
         "of\n"
         "rp-launch:\n\n"
         "  rp-launch replay FILE                        compute it\n"
         "  rp-launch replay --debug-worker 0=gdb FILE   compute it under a debugger\n";
}

}  // namespace rp
