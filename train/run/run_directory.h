// train/run/run_directory.h
// Manages the output directory of a run: metrics.jsonl, checkpoint-N/, final/.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "train/settings/problems.h"

namespace rp {

// Names the files of a run, and creates, checks, renames and deletes its directories. The directory
// need not exist until create() is called.
class RunDirectory {
 public:
  explicit RunDirectory(std::filesystem::path path) : path_(std::move(path)) {}

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path metrics() const { return path_ / "metrics.jsonl"; }
  [[nodiscard]] std::filesystem::path evaluations() const { return path_ / "evaluations.jsonl"; }
  [[nodiscard]] std::filesystem::path log() const { return path_ / "train.log"; }
  [[nodiscard]] std::filesystem::path checkpoint(std::int64_t step) const;
  [[nodiscard]] std::filesystem::path final_model() const { return path_ / "final"; }
  [[nodiscard]] bool has_final_model() const;
  [[nodiscard]] std::filesystem::path merged_model() const { return path_ / "merged"; }

  // Returns the steps of the existing checkpoints, ascending.
  [[nodiscard]] std::vector<std::int64_t> checkpoints() const;

  // Checks whether a run may write to this directory; changes nothing. A run may write if the
  // directory does not exist, is empty, or belongs to a run of `train` that has not made a step
  // yet; with `is_resumed`, also if its run has not ended. Otherwise adds a problem: kUsage, or
  // kOutputFailed if the file system denies access.
  void check(bool is_resumed, Problems& problems) const;

  // Checks whether the model of a checkpoint may be written to this directory, which is any
  // directory without a trained model. Otherwise adds a problem (kUsage).
  void check_export(Problems& problems) const;

  // Deletes the checkpoints of steps after `after` up to `last`, except the newest `num_kept` of
  // them and those of the steps `kept`. Returns the steps of the deleted ones. Throws rp::Error
  // (kOutputFailed).
  [[nodiscard]] std::vector<std::int64_t> delete_old_checkpoints(std::int64_t after, std::int64_t last,
                                                                 std::int64_t num_kept,
                                                                 const std::set<std::int64_t>& kept = {}) const;

  // Creates the directory and its parents. Throws rp::Error (kOutputFailed).
  void create() const;

  // Renames a directory that is in the way of the run, so that nothing is lost: with `prefix`
  // "damaged-", from "checkpoint-20" to "damaged-checkpoint-20", or with a number appended if that
  // name is taken. Returns the new name. Throws rp::Error (kOutputFailed).
  [[nodiscard]] std::string set_aside(const std::filesystem::path& directory, const char* prefix) const;

 private:
  [[nodiscard]] bool has_steps() const;

  std::filesystem::path path_;
};

// Returns the step of a directory ".../checkpoint-20"; -1 if it has a different form of name.
[[nodiscard]] std::int64_t step_of_checkpoint(const std::filesystem::path& directory);

// Returns the checkpoint that --resume refers to: `directory` itself or, if it is an output
// directory, the newest checkpoint in it. Throws rp::Error (kBadInput) if there is none.
[[nodiscard]] std::filesystem::path checkpoint_to_resume(const std::filesystem::path& directory);

}  // namespace rp
