// train/output/step_file.h
// Writes the files of OUTPUT that have a line for each step or evaluation: metrics.jsonl,
// metrics.csv, evaluations.jsonl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "train/output/kept_file.h"

namespace rp {

// An open file of lines. Each line is visible to every reader when add() returns. While this
// exists, a second run cannot open the same file.
class StepFile {
 public:
  // Creates the file, or opens an existing one and cuts off lines of steps after `last_step` and an
  // incomplete last line. Each line is a JSON object with a "step". Throws rp::Error:
  // kOutputFailed, kUsage if another run is writing the file, kBadInput if it is not a file of
  // `train`.
  static StepFile open_json(const std::filesystem::path& path, std::int64_t last_step);
  // Opens a file whose first line is `header`; each other line begins with the step and a comma.
  static StepFile open_csv(const std::filesystem::path& path, std::int64_t last_step, std::string_view header);

  // `line`: without its newline. Throws rp::Error (kOutputFailed); the file then ends with the
  // previous line.
  void add(const std::string& line) { file_.append(line + "\n"); }
  // Returns the step of the last line when the file was opened; -1 if it had no line.
  [[nodiscard]] std::int64_t last_step() const { return last_step_; }

 private:
  StepFile(KeptFile file, std::int64_t last_step) : file_(std::move(file)), last_step_(last_step) {}
  template <typename StepOfLine>
  static StepFile open(const std::filesystem::path& path, std::int64_t last_step, std::string_view header,
                       StepOfLine step_of);

  KeptFile file_;
  std::int64_t last_step_;
};

}  // namespace rp
