#include "train/checkpoints.h"

#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/system/clock.h"
#include "common/text.h"
#include "train/run/run_state.h"

namespace rp {

Checkpoints::Checkpoints(Session& session, Pipeline& pipeline, const TrainSettings& settings, const RunInputs& inputs,
                         const RunDirectory& directory, std::function<void(const std::string&)> note)
    : session_(session),
      pipeline_(pipeline),
      settings_(settings),
      inputs_(inputs),
      directory_(directory),
      note_(std::move(note)),
      approved_(inputs.steps_done) {
  // Checkpoints that an earlier part of the run kept without a limit are never deleted, unless this
  // part sets a limit itself.
  const ResumePoint& resume = inputs.resume;
  if (resume.checkpoint && resume.saved.keeps_all_checkpoints && settings.save_total_limit == 0)
    kept_until_ = resume.saved.step;
}

void Checkpoints::start() {
  begun_ns_ = now_ns();
  const std::vector<std::int64_t> present = directory_.checkpoints();
  set_crash_notice(inputs_.resume.checkpoint                     ? inputs_.steps_done
                   : inputs_.finished.empty() || present.empty() ? -1
                                                                 : present.back());
}

bool Checkpoints::is_due(std::int64_t step) const { return decided(is_due_here(step)); }

bool Checkpoints::is_due_here(std::int64_t step) const {
  if (step == inputs_.steps_done) return !inputs_.finished.empty() && was_cut_off(step);
  const SaveInterval& interval = settings_.save_every;
  if (interval.steps > 0) return step % interval.steps == 0;
  return interval.seconds > 0 && now_ns() - begun_ns_ >= interval.seconds * kNsPerSecond;
}

bool Checkpoints::was_cut_off(std::int64_t step) const {
  const std::int64_t interval = settings_.save_every.steps;
  if (interval == 0 || step < interval) return false;
  const std::vector<std::int64_t> present = directory_.checkpoints();
  return present.empty() || present.back() < step - step % interval;
}

void Checkpoints::begin(std::int64_t step) {
  if (last_begun_ == step) return;
  last_begun_ = step;
  finish();
  const std::filesystem::path path = directory_.checkpoint(step);
  std::error_code ignored;
  if (decided(std::filesystem::exists(path, ignored))) return;
  begun_ns_ = now_ns();
  const bool lacks_room = std::filesystem::space(directory_.path(), ignored).available < inputs_.checkpoint_bytes;
  std::string deleted = settings_.num_kept_checkpoints() > 1 && lacks_room ? delete_old(step, 1, -1) : "";
  // Not the cursor of the batch source: a step of which only some rounds were accepted is drawn
  // again.
  const auto data_cursor = static_cast<std::uint64_t>(step * settings_.batch_size);
  unfinished_.emplace(
      Unfinished{.step = step,
                 .best_step = inputs_.evaluations.best_step,
                 .save = pipeline_.begin_save_state(path, run_state_text(inputs_.state(settings_, step, data_cursor))),
                 .deleted = std::move(deleted)});
}

void Checkpoints::approve(std::int64_t step) {
  approved_ = step;
  if (unfinished_ && unfinished_->step <= approved_ && unfinished_->save.is_written()) finish();
}

void Checkpoints::finish() {
  if (!unfinished_) return;
  Unfinished done = *std::exchange(unfinished_, std::nullopt);
  done.save.finish();
  set_crash_notice(done.step);
  if (const std::int64_t num_kept = settings_.num_kept_checkpoints(); num_kept > 0)
    done.deleted += delete_old(done.step, num_kept, done.best_step);
  note_(cat("checkpoint of step ", done.step, " written to ", directory_.checkpoint(done.step).string(), " in ",
            std::round(done.save.seconds() * 10) / 10, " s", done.deleted));
}

void Checkpoints::leave() noexcept {
  try {
    if (unfinished_ && unfinished_->step <= approved_) {
      if (!unfinished_->save.is_written()) {
        note_(cat("the run has failed; the checkpoint of step ", unfinished_->step,
                  " is still being written; Ctrl-C twice gives it up"));
      }
      finish();
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): the error that failed the run is the one to report
  }
  unfinished_.reset();
}

void Checkpoints::set_crash_notice(std::int64_t saved) const {
  session_.set_crash_notice(
      saved < 0
          ? "all steps, since there is no checkpoint yet; --save-every says how often there is one"
          : cat("the steps after checkpoint-", saved, "; the same command with --resume auto goes on from there"));
}

std::string Checkpoints::delete_old(std::int64_t step, std::int64_t num_kept, std::int64_t kept) const {
  std::string text;
  if (session_.node() > 0) return text;  // the first node does it
  for (const std::int64_t each :
       directory_.delete_old_checkpoints(kept_until_, step, num_kept, {inputs_.evaluations.best_step, kept})) {
    text += cat("; that of step ", each, " is deleted");
  }
  return text;
}

}  // namespace rp
