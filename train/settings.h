// train/settings.h
// What a run of `train` was asked to do, checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "roundpipe/optimizer.h"
#include "roundpipe/plan.h"
#include "roundpipe/trained_parts.h"

namespace rp {

struct TrainSettings {
  std::filesystem::path model;
  std::filesystem::path data;
  std::filesystem::path output;
  std::int64_t max_steps = 0;
  std::int64_t batch_size = 0;  // sequences of a step
  std::int64_t num_microbatches = 0;  // of a round
  std::int64_t sequence_length = 0;
  double learning_rate = 0;
  std::uint64_t seed = 0;
  std::int64_t rounds_per_step = 1;
  bool asynchronous = false;
  DType dtype = DType::kBFloat16;
  double max_grad_norm = 1.0;
  double weight_decay = 0;
  std::int64_t warmup_steps = 0;
  LearningRateSchedule schedule = LearningRateSchedule::kConstant;
  double z_loss = 0;
  std::optional<double> router_aux_loss;  // unset: as config.json says
  std::int64_t save_every = 0;  // 0: never
  std::optional<RecomputeGrain> recompute_grain;  // unset: by the device
  TrainedParts parts{};
  bool saves_merged = false;  // beside the adapter, the model with it
  std::optional<std::filesystem::path> resume;

  [[nodiscard]] std::int64_t sequences_of_round() const { return batch_size / rounds_per_step; }
  // Of the largest one.
  [[nodiscard]] std::int64_t sequences_of_microbatch() const { return (sequences_of_round() + num_microbatches - 1) / num_microbatches; }
  [[nodiscard]] std::int64_t tokens_of_step() const { return batch_size * sequence_length; }
};

struct TrainCommand {
  enum class Action { kRun, kHelp, kVersion };

  Action action = Action::kRun;
  TrainSettings settings;  // of kRun
};

// `arguments`: all after the program's own name. Reads the configuration file that they name, and nothing else. Throws
// one rp::Error that tells of every problem, each with its option (or file and line), the value, the limit and what to
// do: kBadInput if all of them lie in the configuration file, else kUsage. A run on a modelled device (`is_simulated`) requires a
// model only, which may be a preset: what else it depends on has defaults.
[[nodiscard]] TrainCommand parse_train_command(const std::vector<std::string>& arguments, bool is_simulated = false);

// A line of the header: an option's name and the value in effect.
struct SettingRow {
  std::string name;
  std::string value;
};
// All of them, in the order of --help.
[[nodiscard]] std::vector<SettingRow> setting_rows(const TrainSettings& settings);

}  // namespace rp
