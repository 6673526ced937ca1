#include "train/settings/settings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <utility>

#include "common/text.h"
#include "train/settings/options.h"
#include "train/settings/problems.h"
#include "train/settings/setting_reader.h"

namespace rp {
namespace {

constexpr Choices<LearningRateSchedule> kSchedules = {{"constant", LearningRateSchedule::kConstant},
                                                      {"linear", LearningRateSchedule::kLinear},
                                                      {"cosine", LearningRateSchedule::kCosine},
                                                      {"wsd", LearningRateSchedule::kWarmupStableDecay}};
constexpr Choices<FinalModel> kFinalModels = {{"last", FinalModel::kLast}, {"best", FinalModel::kBest}};
constexpr Choices<DType> kDTypes = {{"bf16", DType::kBFloat16}, {"fp16", DType::kFloat16}, {"fp32", DType::kFloat32}};
constexpr Choices<RecomputeGrain> kGrains = {{"stage", RecomputeGrain::kStage}, {"layer", RecomputeGrain::kLayer}};

template <typename Value>
const char* name_of(Value value, Choices<Value> choices) {
  return std::find_if(choices.begin(), choices.end(), [value](const auto& choice) { return choice.second == value; })
      ->first;
}

constexpr std::int64_t kMaxSteps = 1'000'000'000;
constexpr double kMaxBeta = 0.999999;
constexpr double kDefaultEpochs = 3;  // as in transformers' Trainer
constexpr int kMaxLoraRank = 65536;
constexpr std::int64_t kMaxBatch = 1'000'000;
constexpr std::int64_t kMaxLength = std::int64_t{1} << 24;
constexpr std::int64_t kMaxTokensOfStep = std::int64_t{1} << 32;

void read_parts(SettingReader& reader, TrainedParts& parts) {
  LoraSettings& lora = parts.lora;
  reader.read_number("lora-rank", lora.rank, 0, kMaxLoraRank);
  reader.read_positive("lora-alpha", lora.alpha, 1e6);
  reader.read_text("lora-targets", lora.targets);
  reader.read_switch("lora-experts", lora.on_experts);
  reader.read_number("lora-dropout", lora.dropout, 0.0, 0.99);
  reader.read_switch("rslora", lora.is_rank_stabilised);
  reader.read_switch("dora", lora.is_dora);
  reader.read_path("adapter", parts.adapter);
  reader.read_text("freeze", parts.freeze);
  reader.read_text("train", parts.train);
}

// Returns the defaults of runs on an emulated device. The batch is that of `rp-plan plan`.
TrainSettings simulated_defaults() {
  TrainSettings s;
  s.max_steps = 12;
  s.batch_size = 128;
  s.num_microbatches = 16;
  s.sequence_length = 2048;
  s.warmup_steps = 0;
  return s;
}

TrainSettings read_settings(SettingReader& reader, bool is_simulated) {
  TrainSettings s = is_simulated ? simulated_defaults() : TrainSettings{};
  reader.read_path("model", s.model);
  reader.read_path("data", s.data);
  reader.read_path("output", s.output);
  // With 0 steps, the model is written as it was read; an emulated device reads no model.
  reader.read_number("max-steps", s.max_steps, std::int64_t{is_simulated ? 1 : 0}, kMaxSteps);
  reader.read_positive("epochs", s.epochs, 1e6);
  if (!is_simulated && reader.find("max-steps") == nullptr && reader.find("epochs") == nullptr)
    s.epochs = kDefaultEpochs;
  reader.read_number("batch-size", s.batch_size, std::int64_t{1}, kMaxBatch);
  reader.read_number("num-microbatches", s.num_microbatches, std::int64_t{1}, kMaxBatch);
  reader.read_number("sequence-length", s.sequence_length, std::int64_t{1}, kMaxLength);
  bool is_padded = false;
  reader.read_switch("no-packing", is_padded);
  s.is_packed = !is_padded;
  reader.read_positive("learning-rate", s.learning_rate, 10.0);
  reader.read_number("seed", s.seed, std::uint64_t{0}, UINT64_MAX);
  reader.read_number("rounds-per-step", s.rounds_per_step, std::int64_t{1}, kMaxBatch);
  reader.read_switch("async", s.asynchronous);
  reader.read_choice("dtype", s.dtype, kDTypes);
  reader.read_number("max-grad-norm", s.max_grad_norm, 0.0, 1e9);
  reader.read_number("weight-decay", s.weight_decay, 0.0, 1.0);
  reader.read_switch("decay-all", s.decays_all);
  reader.read_number("adam-beta1", s.beta1, 0.0, kMaxBeta);
  reader.read_number("adam-beta2", s.beta2, 0.0, kMaxBeta);
  reader.read_positive("adam-epsilon", s.epsilon, 1.0);
  reader.read_number("warmup-steps", s.warmup_steps, std::int64_t{0}, kMaxSteps);
  reader.read_choice("lr-schedule", s.schedule, kSchedules);
  reader.read_number("min-learning-rate", s.min_learning_rate, 0.0, 10.0);
  reader.read_number("decay-steps", s.decay_steps, std::int64_t{0}, kMaxSteps);
  reader.read_number("z-loss", s.z_loss, 0.0, 1e3);
  if (reader.find("router-aux-loss") != nullptr)
    reader.read_number("router-aux-loss", s.router_aux_loss.emplace(), 0.0, 1e3);
  reader.read_path("eval-data", s.eval_data);
  reader.read_number("eval-share", s.eval_share, 0.0, 0.9);
  reader.read_number("eval-every", s.eval_every, std::int64_t{1}, kMaxSteps);
  reader.read_number("early-stop", s.early_stop, std::int64_t{1}, kMaxSteps);
  reader.read_choice("final-model", s.final_model, kFinalModels);
  reader.read_number("log-every", s.log_every, std::int64_t{1}, kMaxSteps);
  reader.read_interval("save-every", s.save_every, kMaxSteps);
  reader.read_number("save-total-limit", s.save_total_limit, std::int64_t{1}, kMaxSteps);
  if (reader.find("recompute-grain") != nullptr)
    reader.read_choice("recompute-grain", s.recompute_grain.emplace(), kGrains);
  read_parts(reader, s.parts);
  reader.read_switch("save-merged", s.saves_merged);
  if (reader.find("resume") != nullptr) {
    std::filesystem::path path;
    reader.read_path("resume", path);
    s.resumes_newest_whole = path == "auto";
    if (!s.resumes_newest_whole) s.resume = path;
  }
  if (reader.find("export") != nullptr) {
    reader.read_path("export", s.exported.emplace());
  }
  return s;
}

void check_parts(const TrainSettings& s, SettingReader& reader) {
  static constexpr const char* kOfPairs[] = {"lora-alpha",   "lora-targets", "lora-experts",
                                             "lora-dropout", "rslora",       "dora"};
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
  for (const char* name : kOfPairs) {
    if (reader.find(name) != nullptr)
      reader.refuse_together({name}, cat("--", name, " is for LoRA; give --lora-rank R, too, or leave it out"));
  }
  if (s.saves_merged)
    reader.refuse_together({"save-merged"},
                           "--save-merged is for LoRA (--lora-rank, --adapter): without it, final/ is the whole model");
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

void check_together(const TrainSettings& s, SettingReader& reader, bool is_simulated) {
  const auto told = [&](const char* name, std::int64_t value) { return reader.told(name, value); };
  if (s.batch_size > 0 && s.batch_size % s.rounds_per_step != 0) {
    reader.refuse_together({"batch-size", "rounds-per-step"},
                           cat(told("batch-size", s.batch_size), " does not split evenly over ",
                               told("rounds-per-step", s.rounds_per_step), " rounds; make it a multiple, such as ",
                               (s.batch_size / s.rounds_per_step + 1) * s.rounds_per_step));
  } else if (s.batch_size > 0 && s.sequences_of_round() < s.num_microbatches) {
    const std::string rounds = s.rounds_per_step > 1 ? cat(" (a round has ", s.sequences_of_round(), " of them)") : "";
    reader.refuse_together({"batch-size", "num-microbatches"},
                           cat(told("batch-size", s.batch_size), rounds, " is too small for ",
                               told("num-microbatches", s.num_microbatches),
                               ": each microbatch of a round needs a sequence; raise the batch size to ",
                               s.num_microbatches * s.rounds_per_step, " or lower the number of microbatches to ",
                               s.sequences_of_round()));
  }
  if (!is_simulated && s.model.string().starts_with("preset:")) {
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
    reader.refuse_together({"warmup-steps", "max-steps"},
                           cat(told("warmup-steps", s.warmup_steps), " is more than ", told("max-steps", s.max_steps),
                               ": the learning rate would never be reached; lower it"));
  }
  if (s.tokens_of_step() > kMaxTokensOfStep) {
    reader.refuse_together(
        {"batch-size", "sequence-length"},
        cat(told("batch-size", s.batch_size), " times ", told("sequence-length", s.sequence_length), " is ",
            s.tokens_of_step(), " tokens a step; at most ", kMaxTokensOfStep, " are possible"));
  }
}

std::string number_text(double value) {
  std::array<char, 40> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  return std::string(digits.data(), end.ptr);
}

// Adds the settings that a checkpoint was saved with, unless `values` has them already.
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
  return (name.starts_with("lora-") && name != "lora-rank") || name == "rslora" || name == "dora" ||
         name == "save-merged";
}

std::string SaveInterval::text() const {
  if (steps > 0) return std::to_string(steps);
  if (seconds == 0) return "never";
  if (seconds % 3600 == 0) return cat(seconds / 3600, "h");
  return seconds % 60 == 0 ? cat(seconds / 60, "m") : cat(seconds, "s");
}

TrainCommand parse_train_command(const std::vector<std::string>& arguments, bool is_simulated,
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
  SettingReader reader(values, problems);
  TrainCommand command{TrainCommand::Action::kRun, read_settings(reader, is_simulated)};
  check_together(command.settings, reader, is_simulated);
  if (is_all_read)
    reader.require_all(is_simulated,
                       command.settings.exported.has_value());  // else a missing one may be in the invalid file
  problems.throw_if_any();
  return command;
}

std::vector<SettingRow> setting_rows(const TrainSettings& s) {
  std::vector<SettingRow> rows;
  const auto add = [&](const char* name, std::string value) {
    std::string shown = value;
    rows.push_back({name, std::move(value), std::move(shown)});
  };
  const auto add_switch = [&](const char* name, bool is_on) { add(name, is_on ? "true" : "false"); };
  // If `is_default`, the value is "" and the header shows `meaning`.
  const auto add_or = [&](const char* name, bool is_default, std::string value, const char* meaning) {
    rows.push_back({name, is_default ? "" : value, is_default ? meaning : value});
  };
  const LoraSettings& lora = s.parts.lora;
  add("model", s.model.string());
  add("data", s.data.string());
  add("output", s.output.string());
  rows.push_back(
      {"max-steps", std::to_string(s.max_steps),
       s.epochs > 0 ? cat(s.max_steps, " (", number_text(s.epochs), " epochs)") : std::to_string(s.max_steps)});
  add("batch-size", std::to_string(s.batch_size));
  add("num-microbatches", std::to_string(s.num_microbatches));
  add("sequence-length", std::to_string(s.sequence_length));
  add_switch("no-packing", !s.is_packed);
  add("learning-rate", number_text(s.learning_rate));
  add("seed", std::to_string(s.seed));
  add("rounds-per-step", std::to_string(s.rounds_per_step));
  add_switch("async", s.asynchronous);
  add("dtype", name_of(s.dtype, kDTypes));
  rows.push_back({"max-grad-norm", number_text(s.max_grad_norm),
                  s.max_grad_norm == 0 ? "0 (no clipping)" : number_text(s.max_grad_norm)});
  add("weight-decay", number_text(s.weight_decay));
  add_switch("decay-all", s.decays_all);
  add("adam-beta1", number_text(s.beta1));
  add("adam-beta2", number_text(s.beta2));
  add("adam-epsilon", number_text(s.epsilon));
  add_or("warmup-steps", s.warmup_steps < 0, std::to_string(s.warmup_steps), "3 % of the steps");
  add("lr-schedule", name_of(s.schedule, kSchedules));
  add("min-learning-rate", number_text(s.min_learning_rate));
  if (s.schedule == LearningRateSchedule::kWarmupStableDecay)
    add_or("decay-steps", s.decay_steps < 0, std::to_string(s.decay_steps), "10 % of the steps");
  add("z-loss", number_text(s.z_loss));
  add_or("router-aux-loss", !s.router_aux_loss, number_text(s.router_aux_loss.value_or(0)), "by the model");
  add_or("eval-data", s.eval_data.empty(), s.eval_data.string(), "none");
  add("eval-share", number_text(s.eval_share));
  add_or("eval-every", s.eval_every == 0, std::to_string(s.eval_every), "never");
  add_or("early-stop", s.early_stop == 0, std::to_string(s.early_stop), "never");
  add("final-model", name_of(s.final_model, kFinalModels));
  add_or("log-every", s.log_every == 0, std::to_string(s.log_every), "20 times a run");
  add("save-every", s.save_every.text());
  add_or("save-total-limit", s.num_kept_checkpoints() == 0, std::to_string(s.num_kept_checkpoints()), "all");
  add_or("recompute-grain", !s.recompute_grain, name_of(s.recompute_grain.value_or(RecomputeGrain::kStage), kGrains),
         "by the device");
  rows.push_back({"lora-rank", std::to_string(lora.rank), lora.rank == 0 ? "0 (no pairs)" : std::to_string(lora.rank)});
  add_or("lora-alpha", lora.alpha == 0, number_text(lora.alpha), "the rank");
  add("lora-targets", lora.targets);
  add_switch("lora-experts", lora.on_experts);
  add("lora-dropout", number_text(lora.dropout));
  add_switch("rslora", lora.is_rank_stabilised);
  add_switch("dora", lora.is_dora);
  add_or("adapter", s.parts.adapter.empty(), s.parts.adapter.string(), "none");
  add_or("freeze", s.parts.freeze.empty(), s.parts.freeze, "nothing");
  add_or("train", s.parts.train.empty(), s.parts.train, "nothing");
  add_switch("save-merged", s.saves_merged);
  add_or("resume", !s.is_resumed(), s.resumes_newest_whole ? "auto" : s.resume.value_or("").string(), "no");
  return rows;
}

}  // namespace rp
