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
#include "train/batches.h"
#include "train/run_state.h"
#include "train/settings.h"
#include "train/token_file.h"

namespace rp {

// Movable; owned by main() for the whole run. Coordinator only.
struct RunInputs {
  models::ModelInfo model;
  std::unique_ptr<TokenFile> data;
  std::unique_ptr<BatchSource> batches;  // whole steps; refers to `data`
  std::optional<std::filesystem::path> checkpoint;  // to resume from
  std::int64_t steps_done = 0;                      // at the checkpoint
  std::vector<std::string> notes;                   // settings that change at the checkpoint
  int threads_per_worker = 1;

  [[nodiscard]] DataIdentity identity() const { return {data->checksum(), batches->counts().sequences}; }
};

// Looks at model, data, output directory, checkpoint and free disk space; changes nothing. Throws one rp::Error that
// tells of everything that is wrong.
[[nodiscard]] RunInputs find_run_inputs(const TrainSettings& settings, int threads_per_worker);

}  // namespace rp
