// train/resume_point.h
// Finds and verifies the checkpoint that --resume refers to, before anything is allocated.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/run/run_state.h"
#include "train/settings/problems.h"
#include "train/settings/settings.h"

namespace rp {

// A damaged checkpoint of the output directory that is later than the one to resume from.
struct DamagedCheckpoint {
  std::filesystem::path path;
  std::string reason;
};

struct ResumePoint {
  std::optional<std::filesystem::path> checkpoint;  // absent: the run begins at step 0
  SavedRun saved;                                   // read from the checkpoint
  std::vector<DamagedCheckpoint> damaged;           // newest first; to be renamed once the run may write
};

// Reads the run's state from a checkpoint, without its tensors. Throws rp::Error (kBadInput).
[[nodiscard]] SavedRun read_checkpoint(const std::filesystem::path& checkpoint);

// Returns the resume point that `settings` requests. `--resume auto` chooses the newest checkpoint
// in --output whose contents match their checksums; if there is no checkpoint at all, the run
// begins. If --resume names an output directory, its newest checkpoint is chosen without a check of
// its contents. A whole checkpoint in --output that is later than the chosen one is a problem
// (kUsage). Throws rp::Error (kBadInput) if there is no such checkpoint, or it is damaged.
// REQUIRES: settings.is_resumed().
[[nodiscard]] ResumePoint find_resume_point(const TrainSettings& settings, Problems& problems);

}  // namespace rp
