#include "train/resume_point.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "common/bad_input.h"
#include "common/files/directory_names.h"
#include "common/text.h"
#include "roundpipe/pipeline.h"
#include "train/run/run_directory.h"

namespace rp {
namespace {

namespace fs = std::filesystem;

SavedRun read_whole_checkpoint(const fs::path& checkpoint) {
  SavedRun saved = read_checkpoint(checkpoint);
  Pipeline::verify_state(checkpoint);
  return saved;
}

// Rethrows the error that is being handled if its cause is this machine and not the checkpoint: a
// checkpoint that this process has no permission to read, or cannot read now, is not damaged.
void rethrow_unless_damaged(const fs::path& checkpoint, const Error& error) {
  if (error.code() == ExitCode::kNoResource) throw;
  std::error_code failed;
  for (const std::string& name : names_in(checkpoint, failed)) {
    if (access((checkpoint / name).c_str(), R_OK) != 0 && errno != ENOENT) throw;
  }
  if (failed) throw;
}

ResumePoint newest_whole_checkpoint(const RunDirectory& output) {
  ResumePoint point;
  std::vector<std::int64_t> steps = output.checkpoints();
  std::ranges::reverse(steps);
  for (const std::int64_t step : steps) {
    const fs::path path = output.checkpoint(step);
    try {
      point.saved = read_whole_checkpoint(path);
      point.checkpoint = path;
      return point;
    } catch (const Error& error) {
      rethrow_unless_damaged(path, error);
      point.damaged.push_back({path, error.what()});
    }
  }
  if (point.damaged.empty()) return point;
  std::string reasons;
  for (const DamagedCheckpoint& each : point.damaged) reasons += cat("\n  ", each.reason);
  throw bad_input(output.path(), "no checkpoint in it is whole", reasons,
                  "\nbring one of them back from a copy, or name another --output and begin again");
}

// Returns the damaged checkpoints that are later than `step`, the one to resume from. A later
// checkpoint that is whole is a problem.
std::vector<DamagedCheckpoint> later_checkpoints(const RunDirectory& output, const fs::path& checkpoint,
                                                 std::int64_t step, Problems& problems) {
  std::vector<DamagedCheckpoint> damaged;
  std::vector<std::int64_t> steps = output.checkpoints();
  std::ranges::reverse(steps);
  for (const std::int64_t later : steps) {
    if (later <= step) break;
    try {
      (void)read_whole_checkpoint(output.checkpoint(later));
      problems.add(ExitCode::kUsage,
                   cat("--output ", output.path().string(), " has a checkpoint of step ", later, ", but --resume ",
                       checkpoint.string(), " is of step ", step, "; remove the later ones or name another --output"));
      return {};
    } catch (const Error& error) {
      rethrow_unless_damaged(output.checkpoint(later), error);
      damaged.push_back({output.checkpoint(later), error.what()});
    }
  }
  return damaged;
}

}  // namespace

SavedRun read_checkpoint(const fs::path& checkpoint) {
  const SavedState state = Pipeline::saved_state(checkpoint);
  SavedRun saved = parse_run_state(checkpoint, state.user_data);
  if (state.step != saved.step) {
    throw bad_input(checkpoint, "says that it is of step ", state.step, " and that train wrote it after step ",
                    saved.step);
  }
  if (const std::int64_t named = step_of_checkpoint(checkpoint); named >= 0 && named != saved.step) {
    throw bad_input(checkpoint, "is the checkpoint of step ", saved.step,
                    " under another name; rename it to checkpoint-", saved.step);
  }
  return saved;
}

ResumePoint find_resume_point(const TrainSettings& settings, Problems& problems) {
  const RunDirectory output(settings.output);
  if (settings.resumes_newest_whole) return newest_whole_checkpoint(output);
  ResumePoint point;
  const fs::path checkpoint = checkpoint_to_resume(*settings.resume);
  point.saved = read_checkpoint(checkpoint);
  point.damaged = later_checkpoints(output, checkpoint, point.saved.step, problems);
  point.checkpoint = checkpoint;
  return point;
}

}  // namespace rp
