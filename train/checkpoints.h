// train/checkpoints.h
// The checkpoints of a run: written beside the training, given their names once their step went well, deleted beyond
// the limit.
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

// Owned by the Training. All arguments must outlive it.
class Checkpoints {
 public:
  // `note`: tells the user a line.
  Checkpoints(Session& session, Pipeline& pipeline, const TrainSettings& settings, const RunInputs& inputs,
              const RunDirectory& directory, std::function<void(const std::string&)> note);

  // The run begins.
  void start();
  // Whether one of `step`, the last one accepted, is due.
  [[nodiscard]] bool is_due(std::int64_t step) const;

  // Begins to write that of `step`, unless it is there. One that is still being written is finished first. REQUIRES:
  // `step` is the last one accepted; those before it are approved.
  void begin(std::int64_t step);
  // The numbers of all steps up to `step` are known and sound: what is written of them gets its name.
  void approve(std::int64_t step);
  // Waits for the one that is being written. REQUIRES: its step is approved.
  void finish();
  // The run has failed: finishes the one of an approved step, however long that takes, and gives up one of another
  // step. Throws nothing.
  void leave() noexcept;

 private:
  struct Unfinished {
    std::int64_t step = 0;
    std::int64_t best_step = -1;  // as its state says
    StateSave save;
    std::string deleted;  // what was said of checkpoints that made room
  };

  // Deletes all but the newest `num_kept` of this run up to `step`, the best, and `kept`. Says which.
  [[nodiscard]] std::string delete_old(std::int64_t step, std::int64_t num_kept, std::int64_t kept) const;

  // Has rp-launch say what is lost if this process cannot say it any more. `saved`: the newest step of which there is a
  // checkpoint; -1: none.
  void set_crash_notice(std::int64_t saved) const;

  Session& session_;
  Pipeline& pipeline_;
  const TrainSettings& settings_;
  const RunInputs& inputs_;
  const RunDirectory& directory_;
  const std::function<void(const std::string&)> note_;
  std::int64_t kept_until_ = -1;  // checkpoints up to this step are never deleted
  std::int64_t begun_ns_ = 0;     // when the last one was begun, or the run
  std::int64_t approved_ = 0;
  std::optional<Unfinished> unfinished_;
};

}  // namespace rp
