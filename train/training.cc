#include "train/training.h"

#include <ATen/ATen.h>
#include <string.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <utility>

#include "common/clock.h"
#include "common/text.h"
#include "roundpipe/models.h"
#include "train/run_header.h"
#include "train/run_state.h"
#include "train/standard_output.h"
#include "train/step_times.h"
#include "train/trained_model.h"

namespace rp {
namespace {

// Resident memory of this process, which maps the whole host store.
std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t pages = 0;
  std::uint64_t resident = 0;
  file >> pages >> resident;
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

// Sequences `begin` to `end` of B sequences of T numbers, without a copy: [end - begin, T].
at::Tensor rows(std::vector<std::int64_t>& numbers, std::int64_t length, std::int64_t begin, std::int64_t end) {
  return at::from_blob(numbers.data() + begin * length, {end - begin, length}, at::kLong);
}

// Those of one round of the step.
void add_losses(const models::CausalLmLosses& losses, StepReport& report) {
  report.loss += losses.cross_entropy;
  if (losses.z_loss) report.z_loss = report.z_loss.value_or(0) + *losses.z_loss;
  if (!losses.experts) return;
  StepReport::Experts sum = report.experts.value_or(StepReport::Experts{});
  sum.auxiliary_loss += losses.experts->auxiliary_loss;
  sum.most_loaded += losses.experts->most_loaded;
  sum.least_loaded += losses.experts->least_loaded;
  report.experts = sum;
}

std::string seconds_text(std::int64_t since_ns) {
  const double seconds = static_cast<double>(now_ns() - since_ns) / static_cast<double>(kNsPerSecond);
  return cat(std::round(seconds * 10) / 10, " s");
}

}  // namespace

Training::Training(Session& session, Pipeline& pipeline, const TrainSettings& settings, const models::CausalLmLossSettings& loss,
                   RunInputs& inputs)
    : session_(session),
      pipeline_(pipeline),
      settings_(settings),
      loss_settings_(loss),
      inputs_(inputs),
      directory_(settings.output),
      done_(inputs.steps_done),
      progress_(settings.max_steps, ProgressStyle::observe()),
      clock_(now_ns()) {
  if (inputs.resume.checkpoint) (void)pipeline.load_state(*inputs.resume.checkpoint);
  take_over_directory();
}

void Training::take_over_directory() {
  directory_.create();
  metrics_ = MetricsFile::open(directory_.metrics(), done_);  // before anything is renamed: no other run has this directory now
  const ResumePoint& resume = inputs_.resume;
  for (const DamagedCheckpoint& each : resume.damaged) {
    inputs_.notes.push_back(cat(each.path.filename().string(), " is damaged and now called ", directory_.set_aside(each.path, "damaged-"), ": ", each.reason));
  }
  // Without final/ beside it, it is of an end that was cut short, or of one after fewer steps.
  if (std::error_code ignored; std::filesystem::exists(directory_.merged_model(), ignored)) {
    inputs_.notes.push_back(cat("merged/ was there already and is now called ", directory_.set_aside(directory_.merged_model(), "earlier-")));
  }
  // Checkpoints that an earlier part of the run was to keep stay, unless this part is told otherwise.
  if (resume.checkpoint && resume.saved.keeps_all_checkpoints && settings_.save_total_limit == 0) kept_until_ = resume.saved.step;
}

void Training::run() {
  for (const std::string& note : inputs_.notes) progress_.note("note: " + note);
  clock_ = StepClock(now_ns());
  const std::int64_t start_ns = now_ns();
  saved_ns_ = start_ns;
  try {
    train_steps();
  } catch (const Interrupted& interrupted) {
    save_interrupted(interrupted);
    throw;
  }
  progress_.remove_bar();
  progress_.note(measured_text(session_.memory_plan()));
  if (const std::string text = worker_memory_text(session_.worker_memory()); !text.empty()) progress_.note(text);
  report_step_times();
  const std::string written = write_model();
  progress_.note(cat("trained ", done_ - inputs_.steps_done, " steps in ", duration_text(static_cast<double>(now_ns() - start_ns) / 1e9), "; ", written));
}

void Training::train_steps() {
  while (done_ < settings_.max_steps) {
    AcceptedStep next = accept_step(done_ + 1);
    ++done_;
    // Only now: while one step's numbers are waited for, the next one is at work.
    report_accepted();
    accepted_ = std::move(next);
    if (is_save_due()) {
      report_accepted();
      save_checkpoint();
    }
  }
  report_accepted();
}

Training::AcceptedStep Training::accept_step(std::int64_t step) {
  AcceptedStep accepted;
  accepted.step = step;
  accepted.epoch = inputs_.batches->epoch();
  TokenBatch batch = inputs_.batches->next();
  accepted.trained_tokens = batch.num_trained;
  // Of the whole step, so that the loss is a mean over its trained tokens however it is split.
  const at::Tensor divisor = at::scalar_tensor(static_cast<double>(batch.num_trained), at::kFloat);
  const std::int64_t size = settings_.sequences_of_round();
  const std::int64_t length = settings_.sequence_length;
  for (std::int64_t round = 0; round < settings_.rounds_per_step; ++round) {
    const std::int64_t begin = round * size;
    accepted.rounds.push_back(pipeline_.forward_backward({rows(batch.tokens, length, begin, begin + size)},
                                                         {rows(batch.labels, length, begin, begin + size), divisor}));
  }
  accepted.learning_rate = scheduled_learning_rate(settings_.schedule, settings_.learning_rate, step,
                                                   settings_.warmup_steps, settings_.max_steps);
  AdamW rule;
  rule.learning_rate = accepted.learning_rate;
  rule.weight_decay = settings_.weight_decay;
  accepted.result = pipeline_.step(rule, {.asynchronous = settings_.asynchronous, .max_grad_norm = settings_.max_grad_norm});
  return accepted;
}

void Training::report_accepted() {
  if (!accepted_) return;
  const AcceptedStep step = *std::exchange(accepted_, std::nullopt);
  StepReport report;
  report.step = step.step;
  for (const RoundResult& round : step.rounds) add_losses(models::causal_lm_losses(round.losses(), loss_settings_), report);
  report.grad_norm = step.result->grad_norm();
  report.learning_rate = step.learning_rate;
  report.trained_tokens = step.trained_tokens;
  report.epoch = step.epoch;
  report.seconds = clock_.on_step(now_ns());
  report.tokens_per_second = static_cast<double>(settings_.tokens_of_step()) / report.seconds;
  report.busy = layer_seconds_of_step() / (clock_.seconds_for(1) * session_.num_workers());
  report.host_bytes = resident_bytes();
  report.staged_bytes = staged_bytes_since_report();
  report.eta_seconds = clock_.seconds_for(settings_.max_steps - step.step);
  metrics_->add(report);
  progress_.show(report);
  report_warm_up();
  report_activations();
  const double loss_scale = step.result->loss_scale();
  if (std::isfinite(report.loss) && !std::isfinite(report.grad_norm) && loss_scale > 1) {
    progress_.note(cat("step ", report.step, ": the gradient overflowed fp16 at a loss scale of ", loss_scale,
                       "; the step is left out, and the scale is halved"));
  } else if (!std::isfinite(report.loss) || !std::isfinite(report.grad_norm)) {
    throw Error(ExitCode::kUserError,
                cat("the loss of step ", report.step, " is ", report.loss, " and its gradient norm ", report.grad_norm,
                    step.result->skipped() ? ": the step was left out" : ": the weights are spoiled",
                    "; lower --learning-rate or add --warmup-steps, and resume from a checkpoint before"));
  }
}

std::uint64_t Training::staged_bytes_since_report() {
  std::uint64_t bytes = 0;
  for (const WorkerMemoryUse& worker : session_.worker_memory()) bytes += worker.staged_bytes;
  return bytes - std::exchange(reported_staged_bytes_, bytes);
}

double Training::layer_seconds_of_step() const {
  double ns = 0;
  for (const LayerTiming& layer : pipeline_.layer_times()) ns += layer.forward + layer.recompute + layer.backward;
  return ns * 1e-9 * static_cast<double>(settings_.num_microbatches * settings_.rounds_per_step);
}

void Training::report_step_times() {
  const StepTimes times = pipeline_.step_times();
  std::optional<PredictedStep> predicted;
  if (const std::string profile = session_.gpu_profile(); !profile.empty() && times.num_steps > 0) {
    predicted = predict_step(settings_, profile, pipeline_.plan_text(), session_.num_workers(), session_.fp16_accumulation());
  }
  if (const std::string text = step_times_text(times, predicted); !text.empty()) progress_.note(text);
}

void Training::report_warm_up() {
  if (std::exchange(has_told_warm_up_, true)) return;
  if (const double seconds = session_.warm_up_seconds(); seconds > 0) progress_.note(warm_up_text(seconds));
}

void Training::report_activations() {
  const MemoryPlan plan = session_.memory_plan();
  const double bytes = static_cast<double>(plan.activation_bytes().value_or(0));
  if (bytes == told_activation_bytes_) return;
  if (told_activation_bytes_ > 0 && std::abs(bytes - told_activation_bytes_) <= 0.01 * static_cast<double>(plan.bytes())) return;
  told_activation_bytes_ = bytes;
  progress_.note(activations_text(plan));
}

std::string Training::write_model() {
  // Whatever becomes of the model's files: the training is not lost.
  const bool saves_first = settings_.save_every.is_on() && done_ > 0;
  if (saves_first) save_checkpoint();
  try {
    return write_trained_model(pipeline_, settings_);
  } catch (const Error&) {
    if (!saves_first && done_ > 0) save_checkpoint();
    throw;
  }
}

bool Training::is_save_due() const {
  const SaveInterval& interval = settings_.save_every;
  if (interval.steps > 0) return done_ % interval.steps == 0;
  return interval.seconds > 0 && now_ns() - saved_ns_ >= interval.seconds * kNsPerSecond;
}

void Training::save_checkpoint() {
  const std::filesystem::path path = directory_.checkpoint(done_);
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return;
  const std::int64_t start_ns = now_ns();
  std::string deleted;
  const auto delete_old = [&](std::int64_t num_kept) {
    for (const std::int64_t step : directory_.delete_old_checkpoints(kept_until_, done_, num_kept)) deleted += cat("; that of step ", step, " is deleted");
  };
  const std::int64_t num_kept = settings_.num_kept_checkpoints();
  if (num_kept > 1 && std::filesystem::space(directory_.path(), ignored).available < inputs_.checkpoint_bytes) delete_old(1);
  // A step that was not accepted as a whole is drawn again.
  const auto data_cursor = static_cast<std::uint64_t>(done_ * settings_.batch_size);
  pipeline_.save_state(path, run_state_text(inputs_.state(settings_, done_, data_cursor)));
  saved_ns_ = now_ns();
  const std::string took = seconds_text(start_ns);
  if (num_kept > 0) delete_old(num_kept);
  progress_.note(cat("checkpoint of step ", done_, " written to ", path.string(), " in ", took, deleted));
}

void Training::save_interrupted(const Interrupted& interrupted) {
  report_accepted();
  progress_.remove_bar();
  save_checkpoint();
  session_.preempted();
  progress_.note(cat("stopped by SIG", sigabbrev_np(interrupted.signal_number()), " after step ", done_,
                     "; go on with --resume ", directory_.path().string()));
  report_dropped_output();
}

}  // namespace rp
