// train/training.h
// The training loop: rounds, steps, metrics, checkpoints, the trained model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "roundpipe/models.h"
#include "roundpipe/pipeline.h"
#include "roundpipe/session.h"
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

// One run in the coordinator, made after Session::start(). All arguments must outlive it.
class Training {
 public:
  // Loads the checkpoint, if there is one, and makes the output directory.
  // `loss`: with which the pipeline's loss was made. `header`: what the log begins with.
  Training(Session& session, Pipeline& pipeline, const TrainSettings& settings,
           const models::CausalLmLossSettings& loss, RunInputs& inputs, const std::string& header);
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  // Trains to the last step and writes the trained model. Once a signal asks for an end: writes a checkpoint, says so
  // to the session, and throws Interrupted.
  void run();

 private:
  // A step that was accepted and whose numbers were not read yet.
  struct AcceptedStep {
    std::int64_t step = 0;
    double learning_rate = 0;
    std::int64_t tokens = 0;
    std::int64_t trained_tokens = 0;
    std::uint64_t epoch = 0;
    std::vector<RoundResult> rounds;
    std::optional<StepResult> result;
  };

  void run_to_end();
  // Makes the output directory this run's: its lock, its metrics, and nothing in the way.
  void take_over_directory();
  void train_steps();
  // All rounds of the next step, and its update.
  [[nodiscard]] AcceptedStep accept_step(std::int64_t step);
  // Evaluates and begins a checkpoint where that is due after the steps that are accepted so far.
  void after_step();
  [[nodiscard]] bool is_evaluation_due() const;
  // Whether the evaluations have stopped getting better.
  [[nodiscard]] bool stops_early() const;
  void evaluate();
  // Waits for the numbers of the step that was accepted last, if they are still to be read, and reports them.
  void report_accepted();
  // What the layers of a step take on all workers together.
  [[nodiscard]] double layer_seconds_of_step() const;
  [[nodiscard]] std::uint64_t staged_bytes_since_report();
  // Tells once how long the workers warmed up.
  void report_warm_up();
  // Tells the budget of activations when it is known, and when it is another by 1 % of the plan.
  void report_activations();
  // Tells what steps took, and what they were expected to take.
  void report_step_times();
  // A line on the screen and in the log.
  void note(const std::string& line);
  // A checkpoint and then the trained model; says where that is.
  [[nodiscard]] std::string write_model();
  // Writes the checkpoint of the steps done so far, unless it is there, and waits for it.
  void save_checkpoint();
  void save_interrupted(const Interrupted& interrupted);
  // A line that says what a run that fails has lost, and what to go on from; "" before its first step.
  [[nodiscard]] std::string lost_text() const;

  Session& session_;
  Pipeline& pipeline_;
  const TrainSettings& settings_;
  const models::CausalLmLossSettings& loss_settings_;
  RunInputs& inputs_;
  RunDirectory directory_;
  std::int64_t done_;      // steps accepted, those of the checkpoint included
  std::int64_t reported_;  // the last step whose numbers were reported
  std::optional<StepFile> metrics_, metrics_csv_, evaluations_;
  std::optional<EventFile> events_;
  std::optional<KeptFile> log_;
  RunSummary summary_;
  Progress progress_;
  StepClock clock_;
  std::optional<AcceptedStep> accepted_;
  Checkpoints checkpoints_;
  std::uint64_t reported_staged_bytes_ = 0;  // of all steps so far
  bool has_told_warm_up_ = false;
  double told_activation_bytes_ = 0;  // the budget as it was told last
};

}  // namespace rp
