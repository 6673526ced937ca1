// train/run/run_state.h
// What a checkpoint says beside the weights: how far the data was used, and by which settings.
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

// The data as a checkpoint remembers it.
struct DataIdentity {
  std::uint32_t checksum = 0;  // of the token file
  std::uint64_t sequences = 0;
};

struct RunState {
  std::int64_t step = 0;          // steps done
  std::uint64_t data_cursor = 0;  // sequences dealt out
  TrainSettings settings;
  int threads_per_worker = 1;
  DataIdentity data;
  ModelIdentity model;
  EvaluationRecord evaluations{};
};

// The same as read back: settings as text, by option name.
struct SavedRun {
  std::int64_t step = 0;
  std::uint64_t data_cursor = 0;
  std::map<std::string, std::string> settings;
  DataIdentity data;
  ModelIdentity model;
  EvaluationRecord evaluations{};
  bool keeps_all_checkpoints = false;  // the run that saved it deleted none
};

// As JSON, for Pipeline::save_state().
[[nodiscard]] std::string run_state_text(const RunState& state);

// Throws rp::Error (kBadInput) naming `checkpoint` if it is not what run_state_text() made.
[[nodiscard]] SavedRun parse_run_state(const std::filesystem::path& checkpoint, const std::string& text);

// Whether `model`, of this identity, is the one that `saved` trained. Each difference is a problem (kUsage).
void check_model(const std::filesystem::path& checkpoint, const SavedRun& saved, const std::filesystem::path& model,
                 const ModelIdentity& identity, Problems& problems);

// Whether `saved` can go on as `present` asks, which takes the seed, the cut into batches and microbatches,
// the dtype, the data and the model as they were, and no fewer steps than are done. Each difference is a problem
// (kUsage). Returns a line for each setting that may differ and does, such as the learning rate.
[[nodiscard]] std::vector<std::string> check_resume(const std::filesystem::path& checkpoint, const SavedRun& saved,
                                                    const RunState& present, Problems& problems);

}  // namespace rp
