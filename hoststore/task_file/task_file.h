// hoststore/task_file/task_file.h
// Keeps one task in a file, with its weights and its inputs, so that it can be computed again outside of its run.
// Format: docs/formats/task_file.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "hoststore/control.h"
#include "hoststore/store.h"

namespace rp {

// The process that computed the task, and what people should know of it.
struct TaskFileInfo {
  std::filesystem::path program{};                               // absolute
  std::vector<std::string> arguments{};                          // of the program, without its name
  std::filesystem::path directory{};                             // in which it ran
  std::vector<std::pair<std::string, std::string>> variables{};  // the settings of the runtime
  std::uint64_t fingerprint = 0;                                 // of the program's layers and losses
  std::string task{};  // "the backward stage of layers 4-5, round 12, step 13"
};

// Returns the text of TaskFileInfo::task.
[[nodiscard]] std::string task_text(const Command& command);

// Writes the file, which appears complete or not at all. REQUIRES: the weights and the inputs of the task are final.
// Throws rp::Error (kOutputFailed).
void write_task_file(const std::filesystem::path& path, Store& store, const Command& command, const TaskFileInfo& info);

// Throws rp::Error (kBadInput) if the file is not a task file of this version.
[[nodiscard]] TaskFileInfo read_task_info(const std::filesystem::path& path);

// Copies weights and inputs to a new store, and returns the command for one of its workers. REQUIRES: no worker is
// attached; the store has the catalogue of the run. Throws rp::Error: kBadInput if the file is damaged or of another
// model, kNoResource.
[[nodiscard]] Command load_task(const std::filesystem::path& path, Store& store);

}  // namespace rp
