// train/output/step_file.h
// Files of OUTPUT with a line for each step or evaluation: metrics.jsonl, metrics.csv, evaluations.jsonl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "train/output/kept_file.h"

namespace rp {

// An open file of lines. Each line is there for every reader as soon as add() returns. A second run on the same file is
// refused as long as this lives.
class StepFile {
 public:
  // Makes the file, or opens it if it is there: lines of steps after `last_step`, and a last line that is incomplete,
  // are cut off. Throws rp::Error: kOutputFailed, kUsage if another run is writing it, kBadInput if it is none of ours.
  // Lines are JSON objects with a "step".
  static StepFile open_json(const std::filesystem::path& path, std::int64_t last_step);
  // The first line is `header`, the others begin with the step and a comma.
  static StepFile open_csv(const std::filesystem::path& path, std::int64_t last_step, std::string_view header);

  // `line`: without its newline. Throws rp::Error (kOutputFailed); the file then ends with the line before.
  void add(const std::string& line) { file_.append(line + "\n"); }

 private:
  explicit StepFile(KeptFile file) : file_(std::move(file)) {}
  template <typename StepOfLine>
  static StepFile open(const std::filesystem::path& path, std::int64_t last_step, std::string_view header,
                       StepOfLine step_of);

  KeptFile file_;
};

}  // namespace rp
