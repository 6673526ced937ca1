#include "train/training.h"

#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <utility>

#include "common/system/clock.h"
#include "common/text.h"
#include "roundpipe/models.h"
#include "train/evaluation.h"
#include "train/output/metrics_line.h"
#include "train/output/number_text.h"
#include "train/output/standard_output.h"
#include "train/run/run_state.h"
#include "train/run/step_times.h"
#include "train/run_header.h"
#include "train/trained_model.h"

namespace rp {
namespace {

// Returns the resident memory of this process, which maps the whole host store.
std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t pages = 0;
  std::uint64_t resident = 0;
  file >> pages >> resident;
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

// Adds the losses of one round of the step.
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

// Parameters that are vectors, such as norms and biases, do not decay unless --decay-all is given.
Update update_of(const TrainSettings& settings, double learning_rate) {
  const AdamW rule{.learning_rate = learning_rate,
                   .beta1 = settings.beta1,
                   .beta2 = settings.beta2,
                   .epsilon = settings.epsilon,
                   .weight_decay = settings.weight_decay};
  if (settings.weight_decay == 0 || settings.decays_all) return rule;
  AdamW without_decay = rule;
  without_decay.weight_decay = 0;
  const auto is_vector = [](const ParameterInfo& parameter) { return parameter.shape.size() < 2; };
  return std::vector<ParameterGroup>{{.contains = is_vector, .rule = without_decay}, {.contains = {}, .rule = rule}};
}

}  // namespace

Training::Training(Session& session, Pipeline& pipeline, const TrainSettings& settings,
                   const models::CausalLmLossSettings& loss, RunInputs& inputs, const std::string& header)
    : session_(session),
      pipeline_(pipeline),
      settings_(settings),
      loss_settings_(loss),
      inputs_(inputs),
      directory_(settings.output),
      logs_(session.node() == 0 ? directory_.path() : directory_.path() / "nodes" / std::to_string(session.node())),
      done_(inputs.steps_done),
      reported_(inputs.steps_done),
      progress_(settings.max_steps, ProgressStyle::observe(settings.log_every)),
      clock_(now_ns()),
      checkpoints_(session, pipeline, settings, inputs, directory_, [this](const std::string& line) { note(line); }) {
  if (inputs.resume.checkpoint) (void)pipeline.load_state(*inputs.resume.checkpoint);
  take_over_directory();
  log_->append(header);
  set_failure_log([this](const std::string& text) {
    try {
      log_->append(text);
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): if the disk is full for this file too, the next file
                              // that fails reports it
    }
  });
}

Training::~Training() { set_failure_log({}); }

void Training::take_over_directory() {
  logs_.create();
  metrics_ = StepFile::open_json(logs_.metrics(),
                                 done_);  // before anything is renamed: its lock keeps other runs out of this directory
  if (!inputs_.finished.empty()) reported_ = metrics_->last_step();
  metrics_csv_ = StepFile::open_csv(logs_.path() / "metrics.csv", done_, metrics_csv_header());
  if (inputs_.eval_sequences) evaluations_ = StepFile::open_json(logs_.evaluations(), inputs_.evaluations.last_step);
  events_ = EventFile::create(logs_.path(), done_);
  log_ = KeptFile::open(logs_.log());
  const ResumePoint& resume = inputs_.resume;
  for (const DamagedCheckpoint& each : resume.damaged) {
    inputs_.notes.push_back(cat(each.path.filename().string(), " is damaged and now called ",
                                directory_.set_aside(each.path, "damaged-"), ": ", each.reason));
  }
  // A merged model without final/ next to it comes from an interrupted end of a run, or from an end
  // after fewer steps.
  if (std::error_code ignored; session_.node() == 0 && std::filesystem::exists(directory_.merged_model(), ignored) &&
                               !directory_.has_final_model()) {
    inputs_.notes.push_back(cat("merged/ was there already and is now called ",
                                directory_.set_aside(directory_.merged_model(), "earlier-")));
  }
}

void Training::run() {
  try {
    run_to_end();
  } catch (...) {
    checkpoints_.leave();  // for every exception, including those that run_to_end() does not catch itself
    throw;
  }
}

void Training::run_to_end() {
  for (const std::string& each : inputs_.notes) note("note: " + each);
  clock_ = StepClock(now_ns());
  const std::int64_t start_ns = now_ns();
  checkpoints_.start();
  try {
    train_steps();
  } catch (const Interrupted& interrupted) {
    save_interrupted(interrupted);
    throw;
  } catch (...) {
    progress_.remove_bar();
    session_.set_stop_notice("writing the checkpoint that was under way");
    checkpoints_.leave();
    print_error(lost_text());
    throw;
  }
  progress_.remove_bar();
  note(measured_text(session_.memory_plan()));
  if (const std::string text = worker_memory_text(session_.worker_memory()); !text.empty()) note(text);
  report_step_times();
  const double seconds = static_cast<double>(now_ns() - start_ns) / 1e9;
  session_.set_stop_notice("writing the checkpoint and the model");
  const std::string written = write_model();
  if (const std::string text = summary_.text(inputs_.evaluations, seconds); !text.empty()) note(text);
  note(cat("trained ", counted(done_ - inputs_.steps_done, "step", "steps"), " in ", duration_text(seconds), "; ",
           written));
}

void Training::train_steps() {
  report_finished();
  after_step();  // the evaluation before the first step, or the one that an interrupted run has not made
  while (done_ < settings_.max_steps && !stops_early()) {
    session_.set_stop_notice(cat("finishing step ", done_ + 1, ", then a checkpoint"));
    AcceptedStep next = accept_step(done_ + 1);
    ++done_;
    // Only now: while the results of one step are waited for, the next step runs.
    report_accepted();
    accepted_ = std::move(next);
    after_step();
  }
  report_accepted();
  if (done_ < settings_.max_steps) {
    note(cat("stopped early after step ", done_, ": ",
             counted(inputs_.evaluations.num_since_best, "evaluation", "evaluations"),
             " without a better loss than that of step ", inputs_.evaluations.best_step));
  }
}

void Training::after_step() {
  if (is_evaluation_due()) {
    report_accepted();
    evaluate();
  }
  // The checkpoint is written while the next step runs, whose results arrive only after those of
  // this step.
  if (checkpoints_.is_due(done_)) checkpoints_.begin(done_);
}

bool Training::is_evaluation_due() const {
  if (!inputs_.eval_sequences || inputs_.evaluations.last_step == done_) return false;
  return done_ % settings_.eval_every == 0 || done_ == settings_.max_steps;
}

bool Training::stops_early() const {
  return settings_.early_stop > 0 && inputs_.evaluations.num_since_best >= settings_.early_stop;
}

void Training::evaluate() {
  session_.set_stop_notice("leaving the evaluation, then a checkpoint");
  const std::int64_t start_ns = now_ns();
  EvaluationReport report{.step = done_,
                          .trained_tokens = static_cast<std::int64_t>(inputs_.eval_sequences->counts().trained)};
  report.loss = rp::evaluate(pipeline_, *inputs_.eval_sequences, settings_, loss_settings_);
  const std::int64_t end_ns = now_ns();
  clock_.leave_out_until(end_ns);
  report.seconds = static_cast<double>(end_ns - start_ns) / 1e9;
  report.is_best = inputs_.evaluations.add(done_, report.loss);
  evaluations_->add(evaluation_line(report));
  events_->add(done_, {{"eval/loss", report.loss}, {"eval/perplexity", report.perplexity()}});
  summary_.add(report);
  note(evaluation_text(report));
  // The initial weights of a run need no checkpoint, unless they may be written at the end as the
  // best ones.
  const bool may_be_written = done_ > 0 || settings_.final_model == FinalModel::kBest;
  if (report.is_best && may_be_written && settings_.save_every.is_on()) checkpoints_.begin(done_);
}

AcceptedStep Training::accept_step(std::int64_t step) {
  const std::uint64_t epoch = inputs_.batches->epoch();
  TokenBatch batch = inputs_.batches->next();
  const double learning_rate = settings_.learning_rate_curve().at(step);
  AcceptedStep accepted = rp::accept_step(pipeline_, settings_, step, batch, update_of(settings_, learning_rate),
                                          run_state_text(inputs_.state(settings_, step, inputs_.batches->cursor())));
  accepted.learning_rate = learning_rate;
  accepted.epoch = epoch;
  return accepted;
}

void Training::report_accepted() {
  if (!accepted_) return;
  const AcceptedStep step = *std::exchange(accepted_, std::nullopt);
  FinishedStep finished{.step = step.step};
  for (const RoundResult& round : step.rounds) finished.losses.push_back(round.losses());
  finished.grad_norm = step.result->grad_norm();
  finished.skipped = step.result->skipped();
  finished.loss_scale = step.result->loss_scale();
  report(step, finished);
}

// What the process before this one has finished, and perhaps not reported.
void Training::report_finished() {
  const std::uint64_t cursor = inputs_.batches->cursor();
  for (const FinishedStep& finished : inputs_.finished) {
    if (finished.step <= reported_ || finished.losses.empty()) continue;
    AcceptedStep step{.step = finished.step, .learning_rate = settings_.learning_rate_curve().at(finished.step)};
    inputs_.batches->seek(static_cast<std::uint64_t>((finished.step - 1) * settings_.batch_size));
    step.epoch = inputs_.batches->epoch();
    const TokenBatch batch = inputs_.batches->next();
    step.tokens = batch.num_tokens;
    step.trained_tokens = batch.num_trained;
    report(step, finished);
  }
  inputs_.batches->seek(cursor);
}

void Training::report(const AcceptedStep& step, const FinishedStep& finished) {
  StepReport report;
  report.step = step.step;
  for (const std::vector<double>& losses : finished.losses)
    add_losses(models::causal_lm_losses(losses, loss_settings_), report);
  report.grad_norm = finished.grad_norm;
  report.learning_rate = step.learning_rate;
  report.tokens = step.tokens;
  report.trained_tokens = step.trained_tokens;
  report.padded_tokens = settings_.tokens_of_step() - step.tokens;
  report.epoch = step.epoch;
  report.seconds = clock_.on_step(now_ns());
  report.tokens_per_second = static_cast<double>(report.tokens) / report.seconds;
  report.busy = layer_seconds_of_step() / (clock_.seconds_for(1) * session_.num_workers_of_all_nodes());
  report.host_bytes = resident_bytes();
  report.staged_bytes = staged_bytes_since_report();
  report.eta_seconds = clock_.seconds_for(settings_.max_steps - step.step);
  if (report.step > metrics_csv_->last_step()) metrics_csv_->add(metrics_csv_line(report));
  events_->add(report.step, {{"train/loss", report.loss},
                             {"train/grad_norm", report.grad_norm},
                             {"train/learning_rate", report.learning_rate},
                             {"train/tokens_per_second", report.tokens_per_second},
                             {"train/tokens", static_cast<double>(report.tokens)},
                             {"train/trained_tokens", static_cast<double>(report.trained_tokens)},
                             {"train/padded_tokens", static_cast<double>(report.padded_tokens)},
                             {"train/epoch", static_cast<double>(report.epoch)}});
  metrics_->add(metrics_line(report));  // last: a program that goes on reports what is not in this file
  summary_.add(report);
  reported_ = report.step;
  progress_.show(report);
  report_warm_up();
  report_activations();
  const double loss_scale = finished.loss_scale;
  if (std::isfinite(report.loss) && !std::isfinite(report.grad_norm) && loss_scale > 1) {
    note(cat("step ", report.step, ": the gradient overflowed fp16 at a loss scale of ", loss_scale,
             "; the step is left out, and the scale is halved"));
  } else if (!std::isfinite(report.loss) || !std::isfinite(report.grad_norm)) {
    throw Error(ExitCode::kUserError,
                cat("the loss of step ", report.step, " is ", report.loss, " and its gradient norm ", report.grad_norm,
                    finished.skipped ? ": the step was left out" : ": the weights are spoiled",
                    "; lower --learning-rate or add --warmup-steps, and resume from a checkpoint before"));
  }
  checkpoints_.approve(report.step);
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
    predicted = predict_step(settings_, profile, pipeline_.plan_text(), session_.num_workers(),
                             session_.fp16_accumulation(), session_.num_nodes(), session_.network());
  }
  if (const std::string text = step_times_text(times, predicted); !text.empty()) note(text);
}

void Training::report_warm_up() {
  if (std::exchange(has_told_warm_up_, true)) return;
  if (const double seconds = session_.warm_up_seconds(); seconds > 0) note(warm_up_text(seconds));
}

void Training::report_activations() {
  const MemoryPlan plan = session_.memory_plan();
  const double bytes = static_cast<double>(plan.activation_bytes().value_or(0));
  if (bytes == told_activation_bytes_) return;
  if (told_activation_bytes_ > 0 &&
      std::abs(bytes - told_activation_bytes_) <= 0.01 * static_cast<double>(plan.bytes()))
    return;
  told_activation_bytes_ = bytes;
  note(activations_text(plan));
}

std::string Training::write_model() {
  checkpoints_.finish();
  // The checkpoint comes first, so that the training is not lost if the model cannot be written.
  const bool saves_first = settings_.save_every.is_on() && done_ > 0;
  if (saves_first) save_checkpoint();
  // The process before this one may have died after that.
  if (!inputs_.finished.empty() && directory_.has_final_model())
    return cat("the model is in ", directory_.final_model().string());
  const std::int64_t best = inputs_.evaluations.best_step;
  const bool is_other = settings_.final_model == FinalModel::kBest && best >= 0 && best != done_;
  try {
    if (is_other) (void)pipeline_.load_state(directory_.checkpoint(best));
    return write_trained_model(pipeline_, settings_) + (is_other ? cat(", that of step ", best) : "");
  } catch (const Error&) {
    if (!saves_first && done_ > 0) save_checkpoint();
    throw;
  }
}

void Training::note(const std::string& line) {
  progress_.note(line);
  log_->append(line + "\n");
}

void Training::save_checkpoint() {
  checkpoints_.begin(done_);
  checkpoints_.finish();
}

std::string Training::lost_text() const try {
  if (reported_ == 0) return "";
  const std::vector<std::int64_t> saved = directory_.checkpoints();
  if (saved.empty()) {
    return cat("train: the run ends after step ", reported_,
               " without a checkpoint: its steps are lost; --save-every says how often there is one\n");
  }
  const std::int64_t num_lost = std::max<std::int64_t>(reported_ - saved.back(), 0);
  return cat("train: the run ends after step ", reported_, "; ", counted(num_lost, "step is", "steps are"),
             " lost: go on from ", directory_.checkpoint(saved.back()).string(), " with --resume auto\n");
} catch (const Error&) {  // if the directory cannot be read, the error that failed the run is the one to report
  return "";
}

void Training::save_interrupted(const Interrupted& interrupted) {
  report_accepted();
  progress_.remove_bar();
  save_checkpoint();
  (void)session_.from_first_node("");  // no node ends before the checkpoint has its name, because that ends the others
  session_.preempted();
  note(cat("stopped by SIG", sigabbrev_np(interrupted.signal_number()), " after step ", done_, "; go on with --resume ",
           directory_.path().string()));
  report_dropped_output();
}

}  // namespace rp
