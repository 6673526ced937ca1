// train/run_inputs.h
// What a run works on, found and checked before anything is allocated or written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "roundpipe/models.h"
#include "train/data/batches.h"
#include "train/data/token_file.h"
#include "train/resume_point.h"
#include "train/run/evaluation_record.h"
#include "train/run/run_state.h"
#include "train/settings/settings.h"

namespace rp {

// Movable; owned by main() for the whole run. Coordinator only.
struct RunInputs {
  models::ModelInfo model;
  ModelIdentity identity;        // of the model
  EvaluationRecord evaluations;  // so far
  std::unique_ptr<TokenFile> data;
  std::unique_ptr<Sequences> sequences;  // to train on; refers to `data`
  std::unique_ptr<BatchSource> batches;  // whole steps of them
  std::unique_ptr<TokenFile> eval_data;  // of --eval-data
  std::unique_ptr<Sequences>
      eval_sequences;              // to evaluate on, from `eval_data` or held out of `data`; null: no evaluation
  ResumePoint resume;              // without a checkpoint: the run begins
  std::int64_t steps_done = 0;     // at the checkpoint
  std::vector<std::string> notes;  // what the run begins with, and settings that change at the checkpoint
  std::uint64_t checkpoint_bytes = 0;
  bool has_ended = false;  // --resume auto has nothing to do: the trained model is written
  int threads_per_worker = 1;

  // What a checkpoint of these inputs says after `step` steps, in which `data_cursor` sequences were dealt out.
  [[nodiscard]] RunState state(const TrainSettings& settings, std::int64_t step, std::uint64_t data_cursor) const {
    return {step,     data_cursor, settings, threads_per_worker, {data->checksum(), sequences->size()},
            identity, evaluations};
  }
};

// Looks at model, data, output directory, checkpoint and free disk space; changes nothing of them. Fills in the
// settings that were not given. Throws one rp::Error that tells of everything that is wrong.
[[nodiscard]] RunInputs find_run_inputs(TrainSettings& settings, int threads_per_worker);

// The same for --export: the checkpoint whose model is to be written. REQUIRES: settings.exported.
[[nodiscard]] std::filesystem::path find_exported_checkpoint(const TrainSettings& settings);

}  // namespace rp
