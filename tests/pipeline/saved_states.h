// tests/pipeline/saved_states.h
// Trains and saves the state after each step, and reads the files of such states.
#pragma once

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/pipeline/tiny_run.h"

namespace rp::test {

inline constexpr std::array kStateFiles = {"state.json", "state.safetensors", "XXH128SUMS"};
using StateContents = std::map<std::string, std::string>;  // by file name; a missing file is empty

inline StateContents contents_of(const std::filesystem::path& state) {
  StateContents contents;
  for (const char* name : kStateFiles) {
    std::ifstream file(state / name, std::ios::binary);
    contents[name] = {std::istreambuf_iterator<char>(file), {}};
  }
  return contents;
}

// Returns the path of the state of step k, "state-k".
inline std::filesystem::path state_path(const std::filesystem::path& directory, std::int64_t step) {
  return directory / ("state-" + std::to_string(step));
}

// Trains on all rounds and saves the state after each step: either before training continues, or in
// the background while the rounds and the update of the next step are accepted.
inline void train_and_save(Pipeline& pipeline, const PipelineOptions& options,
                           const std::vector<reference::Round>& rounds, const std::filesystem::path& directory,
                           bool in_background) {
  std::optional<StateSave> save;
  int num_rounds = 0;
  for (const reference::Round& round : rounds) {
    (void)pipeline.forward_backward(round.inputs, round.arguments);
    if (++num_rounds % options.rounds_per_step != 0) continue;
    (void)pipeline.step(tiny_rule(), {.asynchronous = options.asynchronous, .max_grad_norm = 1});
    if (save) save->finish();
    save.reset();
    const std::filesystem::path state = state_path(directory, pipeline.num_steps());
    if (in_background) {
      save = pipeline.begin_save_state(state, "{}");
    } else {
      pipeline.save_state(state, "{}");
    }
  }
  if (save) save->finish();
}

}  // namespace rp::test
