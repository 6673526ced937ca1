// train/settings/settings.h
// Holds the checked settings of a run of `train`.
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

// The interval at which checkpoints are written during a run. A signal always causes a checkpoint,
// and so does the last step unless the interval is "never".
struct SaveInterval {
  std::int64_t steps = 0;      // steps from one checkpoint to the next; 0: by time
  std::int64_t seconds = 900;  // time from one checkpoint to the next; 0: never

  [[nodiscard]] bool is_on() const { return steps > 0 || seconds > 0; }
  // Returns the interval in the format of --save-every: "200", "15m", "never".
  [[nodiscard]] std::string text() const;
};

// The model that a run writes at its end.
enum class FinalModel { kLast, kBest };

// Numbers whose value 0 or -1 means "not given" are filled in by train/settings/defaults.h.
struct TrainSettings {
  std::filesystem::path model;
  std::filesystem::path data;
  std::filesystem::path output;
  std::int64_t max_steps = 0;
  double epochs = 0;                  // max_steps is computed from it; 0: max_steps was given
  std::int64_t batch_size = 0;        // sequences in a step; 0: not given
  std::int64_t num_microbatches = 0;  // in a round; 0: not given
  std::int64_t sequence_length = 0;   // 0: not given
  bool is_packed = true;              // several documents in a sequence
  double learning_rate = 0;           // at its peak; 0: not given
  std::uint64_t seed = 1;
  std::int64_t rounds_per_step = 1;
  bool asynchronous = false;
  DType dtype = DType::kBFloat16;
  double max_grad_norm = 1.0;
  double weight_decay = 0;
  bool decays_all = false;                            // also norms, biases and other vectors
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  // of AdamW
  std::int64_t warmup_steps = -1;                     // -1: not given
  LearningRateSchedule schedule = LearningRateSchedule::kCosine;
  double min_learning_rate = 0;
  std::int64_t decay_steps = -1;    // steps in which the schedule kWarmupStableDecay falls; -1: not given
  std::filesystem::path eval_data;  // empty: none
  double eval_share = 0;            // share of the documents of `data` that is held out for evaluation
  std::int64_t eval_every = 0;      // steps; 0: not given
  std::int64_t early_stop = 0;      // evaluations without a better loss; 0: never
  FinalModel final_model = FinalModel::kLast;
  std::int64_t log_every = 0;  // steps; 0: not given
  double z_loss = 0;
  std::optional<double> router_aux_loss;  // unset: the value in config.json
  double router_bias_update_rate = 0;     // above 0: parts.corrections is set
  SaveInterval save_every{};
  std::int64_t save_total_limit = 0;              // number of newest checkpoints that are kept; 0: the default
  std::optional<RecomputeGrain> recompute_grain;  // unset: chosen by the device
  TrainedParts parts{};
  bool saves_merged = false;                    // also write the model with the adapter in its weights
  std::optional<std::filesystem::path> resume;  // a checkpoint or an output directory
  bool resumes_newest_whole = false;            // --resume auto: resume if there is a checkpoint
  std::optional<std::filesystem::path>
      exported;  // train nothing; write the model of this checkpoint or output directory

  [[nodiscard]] bool is_resumed() const { return resume.has_value() || resumes_newest_whole; }
  // Returns the number of newest checkpoints that are kept; 0: all. Checkpoints every so many steps
  // are all kept unless a limit is given.
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
  // Returns the number of sequences in the largest microbatch.
  [[nodiscard]] std::int64_t sequences_of_microbatch() const {
    return (sequences_of_round() + num_microbatches - 1) / num_microbatches;
  }
  [[nodiscard]] std::int64_t tokens_of_step() const { return batch_size * sequence_length; }
};

struct TrainCommand {
  enum class Action { kRun, kHelp, kVersion };

  Action action = Action::kRun;
  TrainSettings settings;  // valid for kRun
};

// Returns the settings that a checkpoint was saved with, by option name. Throws rp::Error
// (kBadInput).
using SavedSettingsReader = std::function<std::map<std::string, std::string>(const std::filesystem::path& checkpoint)>;

// Parses and checks the command line. `arguments`: all that follow the program's own name. Reads
// the configuration file that they name and, by `read_saved`, the settings of the checkpoint of
// --export, which apply if the arguments do not set a value. Throws one rp::Error that lists
// every problem, each with its option (or file and line), its value, the limit and a remedy:
// kBadInput if all problems are in these files, else kUsage. A run on an emulated device
// (`is_emulated`) requires only a model, which may be a preset; its other settings have defaults.
[[nodiscard]] TrainCommand parse_train_command(const std::vector<std::string>& arguments, bool is_emulated = false,
                                               const SavedSettingsReader& read_saved = {});

// A setting in effect.
struct SettingRow {
  std::string name;   // name of its option
  std::string value;  // in the option's format; "" for a default that has no such text
  std::string shown;  // as shown in the header of a run
};
// Returns whether a setting has no meaning in a run without LoRA.
[[nodiscard]] bool is_setting_of_pairs(const std::string& name);
// Returns all settings, in the order of --help.
[[nodiscard]] std::vector<SettingRow> setting_rows(const TrainSettings& settings);

}  // namespace rp
