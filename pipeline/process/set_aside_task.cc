#include "pipeline/process/set_aside_task.h"

#include <unistd.h>

#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "common/system/clock.h"
#include "common/system/kernel_file.h"
#include "common/text.h"
#include "coordinator/rounds/completions.h"
#include "coordinator/rounds/task_failure.h"
#include "hoststore/task_file/task_file.h"

namespace rp {

namespace {

// Returns the arguments of this process, without the program's name.
std::vector<std::string> own_arguments() {
  std::vector<std::string> words = command_line_of(getpid());
  if (!words.empty()) words.erase(words.begin());
  return words;
}

// Writes the file to the first of these directories in which that is possible. Returns its path; otherwise sets
// `problem`.
std::optional<std::filesystem::path> write_to_any(const std::vector<std::filesystem::path>& directories, Store& store,
                                                  const Command& command, const TaskFileInfo& info,
                                                  std::string& problem) {
  for (const std::filesystem::path& directory : directories) {
    std::filesystem::path path = directory / cat("roundpipe-task-", getpid(), ".safetensors");
    try {
      write_task_file(path, store, command, info);
      return path;
    } catch (const Error& error) {
      if (problem.empty()) problem = error.what();
    }
  }
  return std::nullopt;
}

}  // namespace

Error set_aside_error(Store& store, const Command& command, const RuntimeSettings& settings) {
  std::error_code ignored;
  const TaskFileInfo info{.program = std::filesystem::read_symlink("/proc/self/exe", ignored),
                          .arguments = own_arguments(),
                          .directory = std::filesystem::current_path(ignored),
                          .variables = settings.variables(),
                          .fingerprint = store.header().fingerprint,
                          .task = task_text(command)};
  std::string problem;
  const auto path =
      write_to_any({info.directory, std::filesystem::temp_directory_path(ignored)}, store, command, info, problem);
  return {ExitCode::kTaskSetAside,
          cat(info.task, " has ended every worker that computed it, so the run ends before it; ",
              path ? cat("to compute it again, alone: rp-launch replay ", path->string())
                   : cat("it could not be written to a file: ", problem))};
}

std::string compute_task(Store& store, const Command& command, WaitRecord waits,
                         const std::function<bool()>& is_failed) {
  RP_ASSERT(store.command_writer(0).try_push(command));
  Completions completions(store, {});
  const std::optional<Completion> completion = completions.wait(0, command.slot.number(), waits, [&] {
    if (is_failed()) completions.interrupt();
    return Completions::kLongWait;
  });
  if (!completion) return "";
  if (completion->outcome == TaskOutcome::kFailed) throw task_failure(store, command, 0);
  const std::int64_t ns = completion->end_ns - completion->start_ns;
  return cat(task_text(command), " has ended without an error, after ", ns / kNsPerMs, " ms, ",
             command.num_microbatches, command.num_microbatches == 1 ? " microbatch\n" : " microbatches\n");
}

}  // namespace rp
