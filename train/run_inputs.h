// train/run_inputs.h
// Finds and checks the inputs of a run before anything is allocated or written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "roundpipe/models.h"
#include "roundpipe/session.h"
#include "train/data/batches.h"
#include "train/data/token_file.h"
#include "train/resume_point.h"
#include "train/run/evaluation_record.h"
#include "train/run/run_state.h"
#include "train/settings/settings.h"

namespace rp {

// The model, data and checkpoint of a run. Movable; owned by main() for the whole run. Coordinator
// only.
struct RunInputs {
  models::ModelInfo model;
  ModelIdentity identity;        // of the model
  EvaluationRecord evaluations;  // of the run so far
  std::unique_ptr<TokenFile> data;
  std::unique_ptr<Sequences> sequences;  // the sequences to train on; refers to `data`
  std::unique_ptr<BatchSource> batches;  // deals out whole steps of `sequences`
  std::unique_ptr<TokenFile> eval_data;  // the file of --eval-data; null without it
  std::unique_ptr<Sequences>
      eval_sequences;  // to evaluate on, from `eval_data` or held out of `data`; null: no evaluation
  ResumePoint resume;  // without a checkpoint, the run begins at step 0
  // The last steps of the process before this one, if that has died; then there is no `resume.checkpoint`.
  std::vector<FinishedStep> finished{};
  std::int64_t steps_done = 0;     // number of steps done at the checkpoint, or by the process before this one
  std::vector<std::string> notes;  // to show when the run begins, e.g. about settings that change at the checkpoint
  std::uint64_t checkpoint_bytes = 0;
  bool has_ended = false;  // --resume auto has nothing to do: the trained model is already written
  int threads_per_worker = 1;

  // Returns the state that a checkpoint stores after `step` steps in which `data_cursor` sequences
  // were dealt out.
  [[nodiscard]] RunState state(const TrainSettings& settings, std::int64_t step, std::uint64_t data_cursor) const {
    return {step,     data_cursor, settings, threads_per_worker, {data->checksum(), sequences->size()},
            identity, evaluations};
  }
};

// Inspects the model, data, output directory, checkpoint and free disk space without changing them.
// Fills in the settings that were not given. Throws one rp::Error that lists all problems.
// `finished`: from Session::restarted(): if there are any, the run continues after them, and its output is there.
[[nodiscard]] RunInputs find_run_inputs(TrainSettings& settings, int threads_per_worker,
                                        std::vector<FinishedStep> finished);

// The same on a node that is not the first one. `checkpoint`: the one to resume from, as the first
// node has found it; nothing if the run begins. Output directory and disk are the first node's.
[[nodiscard]] RunInputs find_run_inputs_of_node(TrainSettings& settings, int threads_per_worker,
                                                const std::optional<std::filesystem::path>& checkpoint);

// Makes the same checks for --export. Returns the checkpoint whose model is to be written.
// REQUIRES: settings.exported.
[[nodiscard]] std::filesystem::path find_exported_checkpoint(const TrainSettings& settings);

}  // namespace rp
