// train/run/run_state.h
// Stores in a checkpoint, besides the weights, how much of the data was used and the settings of
// the run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "train/run/evaluation_record.h"
#include "train/run/model_identity.h"
#include "train/settings/problems.h"
#include "train/settings/settings.h"

namespace rp {

// Identifies the data in a checkpoint.
struct DataIdentity {
  std::uint32_t checksum = 0;  // of the token file
  std::uint64_t sequences = 0;
};

struct RunState {
  std::int64_t step = 0;          // number of steps done
  std::uint64_t data_cursor = 0;  // number of sequences dealt out
  TrainSettings settings;
  int threads_per_worker = 1;
  DataIdentity data;
  ModelIdentity model;
  EvaluationRecord evaluations{};
};

// A RunState as read from a checkpoint. Its settings are text, by option name.
struct SavedRun {
  std::int64_t step = 0;
  std::uint64_t data_cursor = 0;
  std::map<std::string, std::string> settings;
  DataIdentity data;
  ModelIdentity model;
  EvaluationRecord evaluations{};
  bool keeps_all_checkpoints = false;  // the run that wrote the checkpoint has not deleted any
};

// Returns the state as JSON, for Pipeline::save_state().
[[nodiscard]] std::string run_state_text(const RunState& state);

// Returns a text of what must be the same on all nodes of a run: its state, and how it saves and
// evaluates. `eval_checksum`: of the file of --eval-data.
[[nodiscard]] std::string shared_run_text(const RunState& state, std::uint32_t eval_checksum);
// Throws rp::Error (kUserError) that names the first difference between the shared_run_text() of a
// node and that of the first node.
void check_same_run(const std::string& own, const std::string& first, int node);

// Parses the result of run_state_text(). Throws rp::Error (kBadInput) naming `checkpoint` if it is
// malformed or was written by another version.
[[nodiscard]] SavedRun parse_run_state(const std::filesystem::path& checkpoint, const std::string& text);

// Checks that `model`, which has this identity, is the model that `saved` trained. Each difference
// is a problem (kUsage).
void check_model(const std::filesystem::path& checkpoint, const SavedRun& saved, const std::filesystem::path& model,
                 const ModelIdentity& identity, Problems& problems);

// Checks that `saved` can continue as `present` requests. The seed, the division into batches and
// microbatches, the dtype, the data and the model must be the same, and the run must not be shorter
// than the steps already done. Each violation is a problem (kUsage). Returns a line for each
// setting that may differ and does, such as the learning rate.
[[nodiscard]] std::vector<std::string> check_resume(const std::filesystem::path& checkpoint, const SavedRun& saved,
                                                    const RunState& present, Problems& problems);

}  // namespace rp
