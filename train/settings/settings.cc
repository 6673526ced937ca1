#include "train/settings/settings.h"

#include <initializer_list>

#include "common/text.h"
#include "train/settings/options.h"
#include "train/settings/problems.h"
#include "train/settings/setting_reader.h"

namespace rp {
namespace {

constexpr double kDefaultEpochs = 3;  // as in transformers' Trainer
constexpr std::int64_t kMaxTokensOfStep = std::int64_t{1} << 32;

// Returns the settings of a run on an emulated device before its options are read. The batch is that of `rp-plan plan`.
TrainSettings emulated_defaults() {
  TrainSettings s;
  s.max_steps = 12;
  s.batch_size = 128;
  s.num_microbatches = 16;
  s.sequence_length = 2048;
  s.warmup_steps = 0;
  return s;
}

TrainSettings read_settings(SettingReader& reader) {
  TrainSettings s = reader.is_emulated() ? emulated_defaults() : TrainSettings{};
  for (const TrainOption& option : train_options()) {
    if (option.is_setting()) option.read(reader, s);
  }
  if (!reader.is_emulated() && reader.find("max-steps") == nullptr && reader.find("epochs") == nullptr) {
    s.epochs = kDefaultEpochs;
  }
  return s;
}

void check_parts(const TrainSettings& s, SettingReader& reader) {
  if (s.parts.corrections && (s.parts.lora.rank > 0 || !s.parts.adapter.empty())) {
    reader.refuse_together({"router-bias-update-rate", s.parts.lora.rank > 0 ? "lora-rank" : "adapter"},
                           cat("--router-bias-update-rate ", s.router_bias_update_rate,
                               " cannot be combined with LoRA: an adapter has no place for the routers' corrections; "
                               "leave one of the two out"));
  }
  if (!s.parts.adapter.empty()) {
    for (const char* name :
         {"lora-rank", "lora-alpha", "lora-targets", "lora-experts", "rslora", "dora", "freeze", "train"}) {
      if (reader.find(name) == nullptr) continue;
      reader.refuse_together({"adapter", name},
                             cat("--", name, name == std::string_view("lora-rank") ? cat(" ", s.parts.lora.rank) : "",
                                 " cannot be combined with --adapter ", s.parts.adapter.string(),
                                 ", which sets that itself; leave it out"));
    }
    return;
  }
  if (s.parts.lora.rank > 0) return;
  for (const TrainOption& option : train_options()) {
    const char* name = option.name();
    if (!option.is_of_pairs || reader.find(name) == nullptr || name == std::string_view("save-merged")) continue;
    reader.refuse_together({name}, cat("--", name, " is for LoRA; give --lora-rank R, too, or leave it out"));
  }
  if (s.saves_merged) {
    reader.refuse_together({"save-merged"},
                           "--save-merged is for LoRA (--lora-rank, --adapter): without it, final/ is the whole model");
  }
}

void check_evaluation(const TrainSettings& s, SettingReader& reader) {
  if (!s.eval_data.empty() && s.eval_share > 0) {
    reader.refuse_together({"eval-data", "eval-share"},
                           "--eval-data and --eval-share both say what the model is evaluated on; give one");
  }
  if (s.final_model == FinalModel::kBest && !s.save_every.is_on()) {
    reader.refuse_together({"final-model", "save-every"},
                           "--final-model best needs checkpoints, and --save-every never writes none; leave one out");
  }
  if (s.evaluates()) return;
  for (const char* name : {"eval-every", "early-stop"}) {
    if (reader.find(name) != nullptr)
      reader.refuse_together(
          {name}, cat("--", name, " needs data to evaluate on; give --eval-data FILE or --eval-share X, too"));
  }
  if (s.final_model == FinalModel::kBest) {
    reader.refuse_together(
        {"final-model"}, "--final-model best needs data to evaluate on; give --eval-data FILE or --eval-share X, too");
  }
}

void check_together(const TrainSettings& s, SettingReader& reader) {
  const auto text_of_setting = [&](const char* name, std::int64_t value) {
    return reader.text_of_setting(name, value);
  };
  if (s.batch_size > 0 && s.batch_size % s.rounds_per_step != 0) {
    reader.refuse_together(
        {"batch-size", "rounds-per-step"},
        cat(text_of_setting("batch-size", s.batch_size), " does not split evenly over ",
            text_of_setting("rounds-per-step", s.rounds_per_step), " rounds; make it a multiple, such as ",
            (s.batch_size / s.rounds_per_step + 1) * s.rounds_per_step));
  } else if (s.batch_size > 0 && s.sequences_of_round() < s.num_microbatches) {
    const std::string rounds = s.rounds_per_step > 1 ? cat(" (a round has ", s.sequences_of_round(), " of them)") : "";
    reader.refuse_together({"batch-size", "num-microbatches"},
                           cat(text_of_setting("batch-size", s.batch_size), rounds, " is too small for ",
                               text_of_setting("num-microbatches", s.num_microbatches),
                               ": each microbatch of a round needs a sequence; raise the batch size to ",
                               s.num_microbatches * s.rounds_per_step, " or lower the number of microbatches to ",
                               s.sequences_of_round()));
  }
  if (!reader.is_emulated() && s.model.string().starts_with("preset:")) {
    reader.refuse_together({"model"}, cat("--model ", s.model.string(),
                                          " is a model without weights, which runs on an emulated device only: ",
                                          "rp-launch --device sim:rtx4090, say; else give the folder of a model"));
  }
  check_parts(s, reader);
  if (!s.exported) check_evaluation(s, reader);  // the settings of a checkpoint may be given without its data
  if (reader.find("epochs") != nullptr && reader.find("max-steps") != nullptr) {
    reader.refuse_together({"epochs", "max-steps"}, "--epochs and --max-steps both say how long the run is; give one");
  }
  if (s.learning_rate > 0 && s.min_learning_rate > s.learning_rate) {
    reader.refuse_together(
        {"min-learning-rate", "learning-rate"},
        cat("--min-learning-rate ", s.min_learning_rate, " is above --learning-rate ", s.learning_rate, "; lower it"));
  }
  if (s.decay_steps >= 0 && s.schedule != LearningRateSchedule::kWarmupStableDecay) {
    reader.refuse_together({"decay-steps", "lr-schedule"}, "--decay-steps is for --lr-schedule wsd; leave it out");
  }
  if (s.exported && reader.find("resume") != nullptr) {
    reader.refuse_together(
        {"export", "resume"},
        "--export and --resume are both given: the first trains nothing, the second trains on; give one");
  }
  if (s.max_steps > 0 && s.warmup_steps > s.max_steps) {
    reader.refuse_together(
        {"warmup-steps", "max-steps"},
        cat(text_of_setting("warmup-steps", s.warmup_steps), " is more than ",
            text_of_setting("max-steps", s.max_steps), ": the learning rate would never be reached; lower it"));
  }
  if (s.tokens_of_step() > kMaxTokensOfStep) {
    reader.refuse_together({"batch-size", "sequence-length"},
                           cat(text_of_setting("batch-size", s.batch_size), " times ",
                               text_of_setting("sequence-length", s.sequence_length), " is ", s.tokens_of_step(),
                               " tokens a step; at most ", kMaxTokensOfStep, " are possible"));
  }
}

// Adds the settings that a checkpoint was saved with, for options that `values` does not have.
void add_saved_settings(const std::filesystem::path& checkpoint, const SavedSettingsReader& read_saved,
                        OptionValues& values, Problems& problems) {
  problems.collect([&] {
    const std::map<std::string, std::string> saved = read_saved(checkpoint);
    const auto rank = saved.find("lora-rank");
    const bool has_pairs = rank != saved.end() && rank->second != "0";
    for (const auto& [name, text] : saved) {
      // The values from an adapter's folder were saved as settings of their own.
      if (text.empty() || name == "adapter" || find_option(name) == nullptr ||
          (!has_pairs && is_setting_of_pairs(name)))
        continue;
      values.insert({name, {text, cat(checkpoint.string(), ": ", name), true}});
    }
  });
}

}  // namespace

bool is_setting_of_pairs(const std::string& name) {
  const TrainOption* option = find_option(name);
  return option != nullptr && option->is_of_pairs;
}

std::string SaveInterval::text() const {
  if (steps > 0) return std::to_string(steps);
  if (seconds == 0) return "never";
  if (seconds % 3600 == 0) return cat(seconds / 3600, "h");
  return seconds % 60 == 0 ? cat(seconds / 60, "m") : cat(seconds, "s");
}

TrainCommand parse_train_command(const std::vector<std::string>& arguments, bool is_emulated,
                                 const SavedSettingsReader& read_saved) {
  Problems problems;
  OptionValues values = read_command_line(arguments, problems);
  if (values.contains("help")) return {TrainCommand::Action::kHelp, {}};
  if (values.contains("version")) return {TrainCommand::Action::kVersion, {}};
  bool is_all_read = true;
  if (const auto config = values.find("config"); config != values.end()) {
    const std::size_t before = problems.messages().size();
    add_config_file(config->second.text, values, problems);
    is_all_read = problems.messages().size() == before;
  }
  if (const auto exported = values.find("export"); exported != values.end() && read_saved) {
    const std::size_t before = problems.messages().size();
    add_saved_settings(exported->second.text, read_saved, values, problems);
    is_all_read = is_all_read && problems.messages().size() == before;
  }
  SettingReader reader(values, problems, is_emulated);
  TrainCommand command{TrainCommand::Action::kRun, read_settings(reader)};
  check_together(command.settings, reader);
  if (is_all_read)
    reader.require_all(command.settings.exported.has_value());  // what a bad file lacks may well stand in it
  problems.throw_if_any();
  return command;
}

}  // namespace rp
