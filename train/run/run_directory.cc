#include "train/run/run_directory.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string>
#include <string_view>
#include <system_error>

#include "common/bad_input.h"
#include "common/checked_files/output_directory.h"
#include "common/files/directory_names.h"
#include "common/text.h"

namespace rp {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCheckpointPrefix = "checkpoint-";

// Returns the nearest existing directory above `path`.
fs::path existing_parent(const fs::path& path) {
  std::error_code ignored;
  fs::path parent = fs::absolute(path).parent_path();
  while (!fs::exists(parent, ignored) && parent.has_relative_path()) parent = parent.parent_path();
  return parent;
}

}  // namespace

std::int64_t step_of_checkpoint(const fs::path& directory) {
  // "run/checkpoint-20/" has no file name.
  const std::string name = (directory.has_filename() ? directory : directory.parent_path()).filename().string();
  if (!name.starts_with(kCheckpointPrefix)) return -1;
  std::int64_t step = -1;
  (void)std::from_chars(name.data() + kCheckpointPrefix.size(), name.data() + name.size(), step);
  return step >= 0 && name == cat(kCheckpointPrefix, step) ? step : -1;  // excludes "checkpoint-020"
}

fs::path RunDirectory::checkpoint(std::int64_t step) const { return path_ / cat(kCheckpointPrefix, step); }

std::vector<std::int64_t> RunDirectory::checkpoints() const {
  std::vector<std::int64_t> steps;
  std::error_code failure;
  for (const std::string& name : names_in(path_, failure)) {
    std::error_code ignored;
    const std::int64_t step = step_of_checkpoint(name);
    if (step >= 0 && fs::is_directory(path_ / name, ignored)) steps.push_back(step);
  }
  // If the directory cannot be read, it must not count as one without checkpoints: the run would
  // begin again.
  if (failure && failure != std::errc::no_such_file_or_directory && failure != std::errc::not_a_directory) {
    throw Error(ExitCode::kOutputFailed, cat("--output ", path_.string(), " cannot be read: ", failure.message()));
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

bool RunDirectory::has_final_model() const {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(final_model(), ignored));
}

bool RunDirectory::has_steps() const {
  std::error_code ignored;
  return fs::file_size(metrics(), ignored) > 0 || !checkpoints().empty() || has_final_model();
}

void RunDirectory::check(bool is_resumed, Problems& problems) const {
  std::error_code failure;
  const std::string output = cat("--output ", path_.string());
  const fs::file_status status = fs::status(path_, failure);
  if (status.type() == fs::file_type::not_found) {
    const fs::path parent = existing_parent(path_);
    if (access(parent.c_str(), W_OK | X_OK) != 0) {
      problems.add(ExitCode::kOutputFailed,
                   cat(output, " cannot be made in ", parent.string(), ": ", errno_text(errno)));
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
  const bool is_ours = fs::is_regular_file(fs::symlink_status(metrics(), failure)) || !checkpoints().empty();
  if (!is_ours) {
    if (!fs::is_empty(path_, failure)) {
      problems.add(ExitCode::kUsage,
                   cat(output, " holds something else (no metrics.jsonl in it); name a new or empty directory"));
    }
    return;
  }
  if (!has_steps()) return;
  if (!is_resumed) {
    const std::string remedy = checkpoints().empty() ? "" : cat("go on with --resume ", path_.string(), ", ");
    problems.add(ExitCode::kUsage,
                 cat(output, " holds a run already; ", remedy, "name another directory or remove this one"));
  } else if (has_final_model()) {
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

std::vector<std::int64_t> RunDirectory::delete_old_checkpoints(std::int64_t after, std::int64_t last,
                                                               std::int64_t num_kept,
                                                               const std::set<std::int64_t>& kept) const {
  std::vector<std::int64_t> steps = checkpoints();
  std::erase_if(steps, [=](std::int64_t step) { return step <= after || step > last; });
  const auto num_old = std::max<std::int64_t>(static_cast<std::int64_t>(steps.size()) - num_kept, 0);
  steps.resize(num_old);
  std::erase_if(steps, [&](std::int64_t step) { return kept.contains(step); });
  for (const std::int64_t step : steps) OutputDirectory::remove(checkpoint(step));
  return steps;
}

void RunDirectory::check_export(Problems& problems) const {
  std::error_code ignored;
  for (const fs::path& path : {final_model(), merged_model()}) {
    if (!fs::exists(fs::symlink_status(path, ignored))) continue;
    problems.add(ExitCode::kUsage, cat(path.string(), " is there already; move it away or name another --output"));
  }
}

std::string RunDirectory::set_aside(const fs::path& directory, const char* prefix) const {
  const std::string name = prefix + directory.filename().string();
  for (int number = 1;; ++number) {
    std::string aside = number == 1 ? name : cat(name, "-", number);
    const int error = rename_to_new_name(directory, path_ / aside);
    if (error == 0) return aside;
    if (error != EEXIST && error != ENOTEMPTY) {
      throw Error(ExitCode::kOutputFailed,
                  cat(directory.string(), ": cannot be renamed to ", aside, ": ", errno_text(error)));
    }
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
    throw bad_input(
        directory,
        "this run has no checkpoint to resume from; start it again in another directory, or remove this one");
  }
  return directory;
}

}  // namespace rp
