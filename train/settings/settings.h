// train/settings/settings.h
// What a run of `train` was asked to do, checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "roundpipe/optimizer.h"
#include "roundpipe/plan.h"
#include "roundpipe/trained_parts.h"

namespace rp {

// When checkpoints are written while the run goes on. A signal writes one in any case, and unless it is off the last
// step does.
struct SaveInterval {
  std::int64_t steps = 0;      // every so many steps; 0: by time
  std::int64_t seconds = 900;  // after the last one; 0: never

  [[nodiscard]] bool is_on() const { return steps > 0 || seconds > 0; }
  // "200", "15m", "never": as --save-every has it.
  [[nodiscard]] std::string text() const;
};

// Which model a run leaves behind.
enum class FinalModel { kLast, kBest };

// Numbers of which 0 or -1 says that they were not given are filled in by train/settings/defaults.h.
struct TrainSettings {
  std::filesystem::path model;
  std::filesystem::path data;
  std::filesystem::path output;
  std::int64_t max_steps = 0;
  double epochs = 0;                  // of which max_steps is made; 0: max_steps was given
  std::int64_t batch_size = 0;        // sequences of a step; 0: not given
  std::int64_t num_microbatches = 0;  // of a round; 0: not given
  std::int64_t sequence_length = 0;   // 0: not given
  bool is_packed = true;              // several documents a sequence
  double learning_rate = 0;           // at its peak; 0: not given
  std::uint64_t seed = 1;
  std::int64_t rounds_per_step = 1;
  bool asynchronous = false;
  DType dtype = DType::kBFloat16;
  double max_grad_norm = 1.0;
  double weight_decay = 0;
  bool decays_all = false;                            // norms, biases and other vectors, too
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  // of AdamW
  std::int64_t warmup_steps = -1;                     // -1: not given
  LearningRateSchedule schedule = LearningRateSchedule::kCosine;
  double min_learning_rate = 0;
  std::int64_t decay_steps = -1;    // of warm-up, stable, decay; -1: not given
  std::filesystem::path eval_data;  // empty: none
  double eval_share = 0;            // of the documents of `data`
  std::int64_t eval_every = 0;      // steps; 0: not given
  std::int64_t early_stop = 0;      // evaluations without a better loss; 0: never
  FinalModel final_model = FinalModel::kLast;
  std::int64_t log_every = 0;  // steps; 0: not given
  double z_loss = 0;
  std::optional<double> router_aux_loss;  // unset: as config.json says
  SaveInterval save_every{};
  std::int64_t save_total_limit = 0;              // the newest checkpoints that are kept; 0: by default
  std::optional<RecomputeGrain> recompute_grain;  // unset: by the device
  TrainedParts parts{};
  bool saves_merged = false;                    // beside the adapter, the model with it
  std::optional<std::filesystem::path> resume;  // a checkpoint or an output directory
  bool resumes_newest_whole = false;            // --resume auto: go on if there is something to go on from
  std::optional<std::filesystem::path>
      exported;  // train nothing, write the model of this checkpoint or output directory

  [[nodiscard]] bool is_resumed() const { return resume.has_value() || resumes_newest_whole; }
  // The newest checkpoints that are kept; 0: all. Those of chosen steps are kept unless a limit is given.
  [[nodiscard]] std::int64_t num_kept_checkpoints() const {
    constexpr std::int64_t kByTime = 2;
    return save_total_limit > 0 || save_every.steps > 0 ? save_total_limit : kByTime;
  }
  [[nodiscard]] bool evaluates() const { return !eval_data.empty() || eval_share > 0; }
  [[nodiscard]] LearningRate learning_rate_curve() const {
    return {.schedule = schedule,
            .peak = learning_rate,
            .minimum = min_learning_rate,
            .warmup_steps = warmup_steps,
            .decay_steps = decay_steps,
            .max_steps = max_steps};
  }
  [[nodiscard]] std::int64_t sequences_of_round() const { return batch_size / rounds_per_step; }
  // Of the largest one.
  [[nodiscard]] std::int64_t sequences_of_microbatch() const {
    return (sequences_of_round() + num_microbatches - 1) / num_microbatches;
  }
  [[nodiscard]] std::int64_t tokens_of_step() const { return batch_size * sequence_length; }
};

struct TrainCommand {
  enum class Action { kRun, kHelp, kVersion };

  Action action = Action::kRun;
  TrainSettings settings;  // of kRun
};

// Gives the settings that a checkpoint was saved with, by option name. Throws rp::Error (kBadInput).
using SavedSettingsReader = std::function<std::map<std::string, std::string>(const std::filesystem::path& checkpoint)>;

// `arguments`: all after the program's own name. Reads the configuration file that they name and, by `read_saved`, the
// checkpoint of
// --export, whose settings hold where the arguments name none. Throws
// one rp::Error that tells of every problem, each with its option (or file and line), the value, the limit and what to
// do: kBadInput if all of them lie in the configuration file, else kUsage. A run on an emulated device (`is_simulated`)
// requires a model only, which may be a preset: what else it depends on has defaults.
[[nodiscard]] TrainCommand parse_train_command(const std::vector<std::string>& arguments, bool is_simulated = false,
                                               const SavedSettingsReader& read_saved = {});

// A setting in effect.
struct SettingRow {
  std::string name;   // of its option
  std::string value;  // as the option takes it; "" for a default that has no such text
  std::string shown;  // in the header of a run
};
// Whether a setting means nothing in a run without LoRA.
[[nodiscard]] bool is_setting_of_pairs(const std::string& name);
// All of them, in the order of --help.
[[nodiscard]] std::vector<SettingRow> setting_rows(const TrainSettings& settings);

}  // namespace rp
