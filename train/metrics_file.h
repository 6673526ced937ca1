// train/metrics_file.h
// OUTPUT/metrics.jsonl: one JSON object a step, and the sign that an output directory is one of `train`'s.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/fd.h"
#include "train/step_report.h"

namespace rp {

// The object of one step, without a newline. The loss has 17 significant digits: equal text means equal bits. A number
// that is not finite is null.
[[nodiscard]] std::string metrics_line(const StepReport& report);

// An open metrics file. Each step is there for every reader as soon as add() returns. A second run on the same file is
// refused as long as this lives.
class MetricsFile {
 public:
  // Makes the file, or opens it if it is there: lines of steps after `last_step`, and a last line that is incomplete, are
  // cut off. Throws rp::Error: kOutputFailed, kUsage if another run is writing it, kBadInput if it is none of ours.
  static MetricsFile open(const std::filesystem::path& path, std::int64_t last_step);

  // Throws rp::Error (kOutputFailed); the file then ends with the line before.
  void add(const StepReport& report);

 private:
  MetricsFile(std::filesystem::path path, UniqueFd fd, std::int64_t bytes)
      : path_(std::move(path)), fd_(std::move(fd)), bytes_(bytes) {}

  std::filesystem::path path_;
  UniqueFd fd_;
  std::int64_t bytes_;
};

}  // namespace rp
