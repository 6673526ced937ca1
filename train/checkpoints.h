// train/checkpoints.h
// Writes the checkpoints of a run while training continues, names them once their step has proved
// sound, and deletes old ones beyond the limit.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "roundpipe/pipeline.h"
#include "roundpipe/session.h"
#include "train/run/run_directory.h"
#include "train/run_inputs.h"
#include "train/settings/settings.h"

namespace rp {

// Owned by the Training. All constructor arguments must outlive it.
class Checkpoints {
 public:
  // `note`: shows a line to the user.
  Checkpoints(Session& session, Pipeline& pipeline, const TrainSettings& settings, const RunInputs& inputs,
              const RunDirectory& directory, std::function<void(const std::string&)> note);

  // Begins the interval until the first checkpoint by time. Called when the run begins.
  void start();
  // Returns true if a checkpoint of `step` is due. On several nodes, the first one decides. REQUIRES:
  // `step` is the last accepted step.
  [[nodiscard]] bool is_due(std::int64_t step) const;

  // Begins to write the checkpoint of `step`, unless it exists. If another one is still being
  // written, finishes it first. REQUIRES: `step` is the last accepted step; the steps before it are
  // approved.
  void begin(std::int64_t step);
  // Marks all steps up to `step` as approved: their results are known and sound, so their
  // checkpoints may be named. If the unfinished checkpoint is of such a step and completely
  // written, gives it its name.
  void approve(std::int64_t step);
  // Waits until the unfinished checkpoint, if any, is written, and gives it its name. REQUIRES: its
  // step is approved.
  void finish();
  // Called after the run has failed. Finishes the unfinished checkpoint if its step is approved,
  // however long that takes; otherwise discards it. Throws nothing.
  void leave() noexcept;

 private:
  struct Unfinished {
    std::int64_t step = 0;
    std::int64_t best_step = -1;  // as stored in the checkpoint's state
    StateSave save;
    std::string deleted;  // the note about checkpoints that were deleted to free space; "" if none were
  };

  [[nodiscard]] bool is_due_here(std::int64_t step) const;
  // On several nodes, returns the first one's answer.
  [[nodiscard]] bool decided(bool own) const { return !session_.from_first_node(own ? "yes" : "").empty(); }
  // Returns true if the process before this one died before it had written the checkpoint that was
  // due at `step` or last before it. The weights of that step are gone, so the checkpoint is written
  // of `step`. Intervals in seconds begin again with the process.
  [[nodiscard]] bool was_cut_off(std::int64_t step) const;

  // Deletes this run's checkpoints up to `step`, except the newest `num_kept`, the best one, and
  // the one of step `kept`. Returns a text that lists the deleted ones.
  [[nodiscard]] std::string delete_old(std::int64_t step, std::int64_t num_kept, std::int64_t kept) const;

  // Sets what rp-launch prints about lost steps if this process can no longer print it itself.
  // `saved`: the newest step that has a checkpoint; -1: none.
  void set_crash_notice(std::int64_t saved) const;

  Session& session_;
  Pipeline& pipeline_;
  const TrainSettings& settings_;
  const RunInputs& inputs_;
  const RunDirectory& directory_;
  const std::function<void(const std::string&)> note_;
  std::int64_t kept_until_ = -1;  // checkpoints up to this step are never deleted
  std::int64_t begun_ns_ = 0;     // when the last checkpoint was begun, or the run
  std::int64_t approved_ = 0;
  std::int64_t last_begun_ = -1;
  std::optional<Unfinished> unfinished_;
};

}  // namespace rp
