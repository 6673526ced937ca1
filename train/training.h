// train/training.h
// Runs the training loop: rounds, steps, metrics, checkpoints, the trained model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "roundpipe/models.h"
#include "roundpipe/pipeline.h"
#include "roundpipe/session.h"
#include "train/accepted_step.h"
#include "train/checkpoints.h"
#include "train/output/event_file.h"
#include "train/output/kept_file.h"
#include "train/output/progress.h"
#include "train/output/step_clock.h"
#include "train/output/step_file.h"
#include "train/run/run_directory.h"
#include "train/run/run_summary.h"
#include "train/run_inputs.h"
#include "train/settings/settings.h"

namespace rp {

// One run in the coordinator. Constructed after Session::start(). All arguments must outlive it.
class Training {
 public:
  // Loads the checkpoint, if there is one, and creates the output directory. `loss`: the settings
  // that the pipeline's loss was made with. `header`: the first text of the log.
  Training(Session& session, Pipeline& pipeline, const TrainSettings& settings,
           const models::CausalLmLossSettings& loss, RunInputs& inputs, const std::string& header);
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  // Trains to the last step and writes the trained model. Once a signal has requested an end:
  // writes a checkpoint, reports that to the session, and throws Interrupted.
  void run();

 private:
  void run_to_end();
  // Claims the output directory for this run: locks it, opens the files of metrics, and renames
  // what is in the way.
  void take_over_directory();
  void train_steps();
  // Accepts all rounds of the next step, and its update.
  [[nodiscard]] AcceptedStep accept_step(std::int64_t step);
  // Evaluates and begins a checkpoint, if either is due after the steps that are accepted so far.
  void after_step();
  [[nodiscard]] bool is_evaluation_due() const;
  // Returns true if the last `early_stop` evaluations brought no better loss.
  [[nodiscard]] bool stops_early() const;
  void evaluate();
  // Waits for the results of the last accepted step, unless they have been reported, and reports
  // them.
  void report_accepted();
  // Reports the steps of the process before this one that are not in the files yet.
  void report_finished();
  void report(const AcceptedStep& step, const FinishedStep& finished);
  // Returns the time that the layers of one step need, summed over all workers.
  [[nodiscard]] double layer_seconds_of_step() const;
  [[nodiscard]] std::uint64_t staged_bytes_since_report();
  // Notes how long the workers warmed up, once.
  void report_warm_up();
  // Notes the budget of activations when it becomes known, and when it has changed by more than 1 %
  // of the plan.
  void report_activations();
  // Notes the measured time of steps and the predicted one.
  void report_step_times();
  // Shows a line on the screen and appends it to the log.
  void note(const std::string& line);
  // Writes a checkpoint and then the trained model. Returns a text that names its directory.
  [[nodiscard]] std::string write_model();
  // Writes the checkpoint of the steps done so far, unless it exists, and waits for it.
  void save_checkpoint();
  void save_interrupted(const Interrupted& interrupted);
  // Returns a line that reports how many steps a failed run has lost, and where to resume; ""
  // before its first step.
  [[nodiscard]] std::string lost_text() const;

  Session& session_;
  Pipeline& pipeline_;
  const TrainSettings& settings_;
  const models::CausalLmLossSettings& loss_settings_;
  RunInputs& inputs_;
  RunDirectory directory_;
  RunDirectory logs_;      // of this node: the same as directory_ on the first one
  std::int64_t done_;      // steps accepted, including those before the checkpoint
  std::int64_t reported_;  // the last step whose results were reported
  std::optional<StepFile> metrics_, metrics_csv_, evaluations_;
  std::optional<EventFile> events_;
  std::optional<KeptFile> log_;
  RunSummary summary_;
  Progress progress_;
  StepClock clock_;
  std::optional<AcceptedStep> accepted_;
  Checkpoints checkpoints_;
  std::uint64_t reported_staged_bytes_ = 0;  // sum over all reported steps
  bool has_told_warm_up_ = false;
  double told_activation_bytes_ = 0;  // the budget as last reported; 0: not yet
};

}  // namespace rp
