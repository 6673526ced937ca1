#include "train/run_directory.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string>
#include <string_view>
#include <system_error>

#include "common/bad_input.h"
#include "common/text.h"

namespace rp {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCheckpointPrefix = "checkpoint-";

// Of "checkpoint-20"; -1 for another name.
std::int64_t step_of(const std::string& name) {
  if (!name.starts_with(kCheckpointPrefix)) return -1;
  std::int64_t step = -1;
  const char* end = name.data() + name.size();
  const auto [stop, failure] = std::from_chars(name.data() + kCheckpointPrefix.size(), end, step);
  return failure == std::errc{} && stop == end ? step : -1;
}

// The nearest directory above that exists.
fs::path existing_parent(const fs::path& path) {
  std::error_code ignored;
  fs::path parent = fs::absolute(path).parent_path();
  while (!fs::exists(parent, ignored) && parent.has_relative_path()) parent = parent.parent_path();
  return parent;
}

}  // namespace

fs::path RunDirectory::checkpoint(std::int64_t step) const { return path_ / cat(kCheckpointPrefix, step); }

std::vector<std::int64_t> RunDirectory::checkpoints() const {
  std::vector<std::int64_t> steps;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_, ignored)) {
    const std::int64_t step = step_of(entry.path().filename().string());
    if (step >= 0 && entry.is_directory(ignored)) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

bool RunDirectory::has_steps() const {
  std::error_code ignored;
  return fs::file_size(metrics(), ignored) > 0 || !checkpoints().empty() || fs::exists(final_model(), ignored);
}

void RunDirectory::check(bool is_resumed, Problems& problems) const {
  std::error_code failure;
  const std::string output = cat("--output ", path_.string());
  const fs::file_status status = fs::status(path_, failure);
  if (status.type() == fs::file_type::not_found) {
    const fs::path parent = existing_parent(path_);
    if (access(parent.c_str(), W_OK | X_OK) != 0) {
      problems.add(ExitCode::kOutputFailed, cat(output, " cannot be made in ", parent.string(), ": ", errno_text(errno)));
    }
    return;
  }
  if (status.type() != fs::file_type::directory) {
    problems.add(ExitCode::kUsage, cat(output, " is there, but not a directory; name another"));
    return;
  }
  if (access(path_.c_str(), R_OK | W_OK | X_OK) != 0) {
    problems.add(ExitCode::kOutputFailed, cat(output, " cannot be written: ", errno_text(errno)));
    return;
  }
  const bool is_ours = fs::is_regular_file(metrics(), failure);
  if (!is_ours) {
    if (!fs::is_empty(path_, failure)) {
      problems.add(ExitCode::kUsage, cat(output, " holds something else (no metrics.jsonl in it); name a new or empty directory"));
    }
    return;
  }
  if (!has_steps()) return;
  if (!is_resumed) {
    const std::string remedy = checkpoints().empty() ? "" : cat("go on with --resume ", path_.string(), ", ");
    problems.add(ExitCode::kUsage, cat(output, " holds a run already; ", remedy, "name another directory or remove this one"));
  } else if (fs::exists(final_model(), failure)) {
    problems.add(ExitCode::kUsage, cat(output, " holds a run that has ended (", final_model().string(),
                                       "); to train on, move that away or name another directory"));
  }
}

void RunDirectory::create() const {
  std::error_code failure;
  fs::create_directories(path_, failure);
  if (failure) {
    throw Error(ExitCode::kOutputFailed, cat("--output ", path_.string(), " cannot be made: ", failure.message()));
  }
}

fs::path checkpoint_to_resume(const fs::path& directory) {
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) {
    throw bad_input(directory, "there is no such directory to resume from");
  }
  const RunDirectory run(directory);
  if (const std::vector<std::int64_t> steps = run.checkpoints(); !steps.empty()) return run.checkpoint(steps.back());
  if (fs::exists(run.metrics(), ignored)) {
    throw bad_input(directory, "this run has no checkpoint to resume from; start it again in another directory, or remove this one");
  }
  return directory;
}

}  // namespace rp
