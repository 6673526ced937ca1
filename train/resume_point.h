// train/resume_point.h
// Where a run goes on: the checkpoint that --resume means, found and verified before anything is allocated.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/run/run_state.h"
#include "train/settings/problems.h"
#include "train/settings/settings.h"

namespace rp {

// A checkpoint of the output directory that is later than the one to go on from, and why it cannot be used.
struct DamagedCheckpoint {
  std::filesystem::path path;
  std::string reason;
};

struct ResumePoint {
  std::optional<std::filesystem::path> checkpoint;  // absent: the run begins
  SavedRun saved;                                   // of the checkpoint
  std::vector<DamagedCheckpoint> damaged;           // newest first; to be set aside once the run may write
};

// What the checkpoint says of itself; its tensors are not read. Throws rp::Error (kBadInput).
[[nodiscard]] SavedRun read_checkpoint(const std::filesystem::path& checkpoint);

// The resume point that `settings` asks for. `--resume auto` takes the newest checkpoint in --output whose bytes have
// their checksums; without any checkpoint the run begins. An output directory means its newest checkpoint, whatever it
// is like. A whole checkpoint in --output that is later than the one to go on from is a problem (kUsage). Throws
// rp::Error (kBadInput) if there is no such checkpoint, or it is damaged. REQUIRES: settings.is_resumed().
[[nodiscard]] ResumePoint find_resume_point(const TrainSettings& settings, Problems& problems);

}  // namespace rp
