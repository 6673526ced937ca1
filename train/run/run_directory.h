// train/run/run_directory.h
// The output directory of a run: metrics.jsonl, checkpoint-N/, final/.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "train/settings/problems.h"

namespace rp {

// Names the files of a run, and makes, checks, renames and deletes its directories. The directory need not exist until
// it is created.
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

  // The steps of the checkpoints that are there, ascending.
  [[nodiscard]] std::vector<std::int64_t> checkpoints() const;

  // Whether a run may write here; changes nothing. Fine are: no such directory, an empty one, one of `train`'s in which
  // no step was made yet, and with `is_resumed` one of `train`'s whose run has not ended. Else a problem (kUsage), or
  // kOutputFailed where the file system does not let us.
  void check(bool is_resumed, Problems& problems) const;

  // Whether the model of a checkpoint may be written here: into any directory that has no trained model. Else a problem
  // (kUsage).
  void check_export(Problems& problems) const;

  // Deletes checkpoints of steps after `after` up to `last`, except the newest `num_kept` of them and those of the
  // steps `kept`. Returns the steps of those that are gone. Throws rp::Error (kOutputFailed).
  [[nodiscard]] std::vector<std::int64_t> delete_old_checkpoints(std::int64_t after, std::int64_t last,
                                                                 std::int64_t num_kept,
                                                                 const std::set<std::int64_t>& kept = {}) const;

  // Makes it, with its parents. Throws rp::Error (kOutputFailed).
  void create() const;

  // Renames what is in the way of the run, so that nothing is lost: "checkpoint-20" to "damaged-checkpoint-20"
  // (`prefix`: "damaged-"), or with a number behind it if that is taken. Returns the new name. Throws rp::Error
  // (kOutputFailed).
  [[nodiscard]] std::string set_aside(const std::filesystem::path& directory, const char* prefix) const;

 private:
  [[nodiscard]] bool has_steps() const;

  std::filesystem::path path_;
};

// Of ".../checkpoint-20"; -1 for a directory of another name.
[[nodiscard]] std::int64_t step_of_checkpoint(const std::filesystem::path& directory);

// The checkpoint that --resume means: `directory` itself, or the newest one in it if it is an output directory. Throws
// rp::Error (kBadInput) if there is none.
[[nodiscard]] std::filesystem::path checkpoint_to_resume(const std::filesystem::path& directory);

}  // namespace rp
