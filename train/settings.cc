#include "train/settings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <utility>

#include "common/text.h"
#include "train/options.h"
#include "train/problems.h"

namespace rp {
namespace {

template <typename Value>
using Choices = std::initializer_list<std::pair<const char*, Value>>;

constexpr Choices<LearningRateSchedule> kSchedules = {{"constant", LearningRateSchedule::kConstant},
                                                      {"linear", LearningRateSchedule::kLinear},
                                                      {"cosine", LearningRateSchedule::kCosine}};
constexpr Choices<DType> kDTypes = {{"bf16", DType::kBFloat16}, {"fp16", DType::kFloat16}, {"fp32", DType::kFloat32}};
constexpr Choices<RecomputeGrain> kGrains = {{"stage", RecomputeGrain::kStage}, {"layer", RecomputeGrain::kLayer}};

template <typename Value>
const char* name_of(Value value, Choices<Value> choices) {
  return std::find_if(choices.begin(), choices.end(), [value](const auto& choice) { return choice.second == value; })->first;
}

constexpr std::int64_t kMaxSteps = 1'000'000'000;
constexpr int kMaxLoraRank = 65536;
constexpr std::int64_t kMaxBatch = 1'000'000;
constexpr std::int64_t kMaxLength = std::int64_t{1} << 24;
constexpr std::int64_t kMaxTokensOfStep = std::int64_t{1} << 32;

// Turns texts into values. What is wrong goes to the list of problems, and the value stays at its default.
class SettingReader {
 public:
  SettingReader(const OptionValues& values, Problems& problems) : values_(values), problems_(problems) {}

  [[nodiscard]] const OptionValue* find(const char* name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? nullptr : &found->second;
  }

  template <typename Number>
  void read_number(const char* name, Number& result, Number least, Number most) {
    const OptionValue* value = find(name);
    if (value == nullptr) return;
    Number number{};
    const char* end = value->text.data() + value->text.size();
    const auto [stop, failure] = std::from_chars(value->text.data(), end, number);
    const char* kind = std::is_floating_point_v<Number> ? "a number" : "a whole number";
    if (failure != std::errc{} || stop != end || !(number >= least && number <= most)) {
      refuse(*value, cat("must be ", kind, " from ", least, " to ", most));
      return;
    }
    result = number;
  }

  // Above 0, at most `most`.
  void read_positive(const char* name, double& result, double most) {
    const std::size_t before = problems_.messages().size();
    double number = result;
    read_number(name, number, 0.0, most);
    if (const OptionValue* value = find(name); value != nullptr && problems_.messages().size() == before && number == 0) {
      refuse(*value, "must be above 0");
      return;
    }
    result = number;
  }

  void read_path(const char* name, std::filesystem::path& result) {
    const OptionValue* value = find(name);
    if (value == nullptr) return;
    if (value->text.empty()) {
      refuse(*value, "is empty; give a path");
      return;
    }
    result = value->text;
  }

  void read_text(const char* name, std::string& result) {
    const OptionValue* value = find(name);
    if (value == nullptr) return;
    if (value->text.empty()) {
      refuse(*value, "is empty; leave it out");
      return;
    }
    result = value->text;
  }

  void read_switch(const char* name, bool& result) {
    const OptionValue* value = find(name);
    if (value == nullptr) return;
    if (value->text != "true" && value->text != "false") {
      refuse(*value, "must be true or false");
      return;
    }
    result = value->text == "true";
  }

  template <typename Value>
  void read_choice(const char* name, Value& result, Choices<Value> choices) {
    const OptionValue* value = find(name);
    if (value == nullptr) return;
    std::vector<std::string> names;
    std::string list;
    for (const auto& [text, choice] : choices) {
      if (value->text == text) {
        result = choice;
        return;
      }
      names.emplace_back(text);
      list += cat(list.empty() ? "" : " or ", text);
    }
    refuse(*value, cat("must be ", list, did_you_mean(value->text, names)));
  }

  // "--batch-size 3", "run.toml:4: batch-size 3", or the default in the same form.
  [[nodiscard]] std::string told(const char* name, std::int64_t effective) const {
    const OptionValue* value = find(name);
    return cat(value == nullptr ? cat("--", name) : value->source, " ", effective);
  }

  // A problem between several options: the file's, if all that were given stand there.
  void refuse_together(std::initializer_list<const char*> names, const std::string& message) {
    bool is_file = true;
    for (const char* name : names) {
      if (const OptionValue* value = find(name); value != nullptr && !value->is_from_file) is_file = false;
    }
    problems_.add(is_file ? ExitCode::kBadInput : ExitCode::kUsage, message);
  }

  void require_all(bool is_simulated) {
    std::string missing;
    for (const TrainOption& option : train_options()) {
      if (is_simulated && option.name != std::string_view("model")) continue;
      if (!option.is_required || find(option.name) != nullptr) continue;
      missing += cat(missing.empty() ? "" : ", ", "--", option.name, " ", option.argument);
    }
    if (!missing.empty()) problems_.add(ExitCode::kUsage, cat("missing: ", missing, "; train --help explains them"));
  }

 private:
  void refuse(const OptionValue& value, const std::string& rule) {
    problems_.add(value.is_from_file ? ExitCode::kBadInput : ExitCode::kUsage,
                  cat(value.source, " ", rule, " (got '", value.text, "')"));
  }

  const OptionValues& values_;
  Problems& problems_;
};

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

// Of runs on a modelled device; the batch is that of `rp-plan plan`.
TrainSettings simulated_defaults() {
  TrainSettings s;
  s.max_steps = 12;
  s.batch_size = 128;
  s.num_microbatches = 16;
  s.sequence_length = 2048;
  return s;
}

TrainSettings read_settings(SettingReader& reader, bool is_simulated) {
  TrainSettings s = is_simulated ? simulated_defaults() : TrainSettings{};
  reader.read_path("model", s.model);
  reader.read_path("data", s.data);
  reader.read_path("output", s.output);
  // Without steps, the model is written as it was read; a modelled device reads none.
  reader.read_number("max-steps", s.max_steps, std::int64_t{is_simulated ? 1 : 0}, kMaxSteps);
  reader.read_number("batch-size", s.batch_size, std::int64_t{1}, kMaxBatch);
  reader.read_number("num-microbatches", s.num_microbatches, std::int64_t{1}, kMaxBatch);
  reader.read_number("sequence-length", s.sequence_length, std::int64_t{1}, kMaxLength);
  reader.read_positive("learning-rate", s.learning_rate, 10.0);
  reader.read_number("seed", s.seed, std::uint64_t{0}, UINT64_MAX);
  reader.read_number("rounds-per-step", s.rounds_per_step, std::int64_t{1}, kMaxBatch);
  reader.read_switch("async", s.asynchronous);
  reader.read_choice("dtype", s.dtype, kDTypes);
  reader.read_number("max-grad-norm", s.max_grad_norm, 0.0, 1e9);
  reader.read_number("weight-decay", s.weight_decay, 0.0, 1.0);
  reader.read_number("warmup-steps", s.warmup_steps, std::int64_t{0}, kMaxSteps);
  reader.read_choice("lr-schedule", s.schedule, kSchedules);
  reader.read_number("z-loss", s.z_loss, 0.0, 1e3);
  if (reader.find("router-aux-loss") != nullptr) reader.read_number("router-aux-loss", s.router_aux_loss.emplace(), 0.0, 1e3);
  reader.read_number("save-every", s.save_every, std::int64_t{1}, kMaxSteps);
  if (reader.find("recompute-grain") != nullptr) reader.read_choice("recompute-grain", s.recompute_grain.emplace(), kGrains);
  read_parts(reader, s.parts);
  reader.read_switch("save-merged", s.saves_merged);
  if (reader.find("resume") != nullptr) {
    std::filesystem::path path;
    reader.read_path("resume", path);
    s.resume = path;
  }
  return s;
}

void check_parts(const TrainSettings& s, SettingReader& reader) {
  static constexpr const char* kOfPairs[] = {"lora-alpha", "lora-targets", "lora-experts", "lora-dropout", "rslora", "dora"};
  if (!s.parts.adapter.empty()) {
    for (const char* name : {"lora-rank", "lora-alpha", "lora-targets", "lora-experts", "rslora", "dora", "freeze", "train"}) {
      if (reader.find(name) == nullptr) continue;
      reader.refuse_together({"adapter", name}, cat("--", name, name == std::string_view("lora-rank") ? cat(" ", s.parts.lora.rank) : "", " beside --adapter ", s.parts.adapter.string(), ", which says that itself; leave it out"));
    }
    return;
  }
  if (s.parts.lora.rank > 0) return;
  for (const char* name : kOfPairs) {
    if (reader.find(name) != nullptr) reader.refuse_together({name}, cat("--", name, " is for LoRA; give --lora-rank R, too, or leave it out"));
  }
  if (s.saves_merged) reader.refuse_together({"save-merged"}, "--save-merged is for LoRA (--lora-rank, --adapter): without it, final/ is the whole model");
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
    reader.refuse_together({"model"}, cat("--model ", s.model.string(), " is a model without weights, which runs on a modelled device only: ",
                                          "rp-launch --device sim:rtx4090, say; else give the folder of a model"));
  }
  check_parts(s, reader);
  if (s.max_steps > 0 && s.warmup_steps > s.max_steps) {
    reader.refuse_together({"warmup-steps", "max-steps"},
                           cat(told("warmup-steps", s.warmup_steps), " is more than ", told("max-steps", s.max_steps),
                               ": the learning rate would never be reached; lower it"));
  }
  if (s.tokens_of_step() > kMaxTokensOfStep) {
    reader.refuse_together({"batch-size", "sequence-length"},
                           cat(told("batch-size", s.batch_size), " times ", told("sequence-length", s.sequence_length),
                               " is ", s.tokens_of_step(), " tokens a step; at most ", kMaxTokensOfStep, " are possible"));
  }
}

std::string number_text(double value) {
  std::array<char, 40> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  return std::string(digits.data(), end.ptr);
}

}  // namespace

TrainCommand parse_train_command(const std::vector<std::string>& arguments, bool is_simulated) {
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
  SettingReader reader(values, problems);
  TrainCommand command{TrainCommand::Action::kRun, read_settings(reader, is_simulated)};
  check_together(command.settings, reader, is_simulated);
  if (is_all_read) reader.require_all(is_simulated);  // what a bad file lacks may well stand in it
  problems.throw_if_any();
  return command;
}

std::vector<SettingRow> setting_rows(const TrainSettings& s) {
  return {{"model", s.model.string()},
          {"data", s.data.string()},
          {"output", s.output.string()},
          {"max-steps", std::to_string(s.max_steps)},
          {"batch-size", std::to_string(s.batch_size)},
          {"num-microbatches", std::to_string(s.num_microbatches)},
          {"sequence-length", std::to_string(s.sequence_length)},
          {"learning-rate", number_text(s.learning_rate)},
          {"seed", std::to_string(s.seed)},
          {"rounds-per-step", std::to_string(s.rounds_per_step)},
          {"async", s.asynchronous ? "true" : "false"},
          {"dtype", name_of(s.dtype, kDTypes)},
          {"max-grad-norm", s.max_grad_norm == 0 ? "0 (no clipping)" : number_text(s.max_grad_norm)},
          {"weight-decay", number_text(s.weight_decay)},
          {"warmup-steps", std::to_string(s.warmup_steps)},
          {"lr-schedule", name_of(s.schedule, kSchedules)},
          {"z-loss", number_text(s.z_loss)},
          {"router-aux-loss", s.router_aux_loss ? number_text(*s.router_aux_loss) : "by the model"},
          {"save-every", s.save_every == 0 ? "never" : std::to_string(s.save_every)},
          {"recompute-grain", s.recompute_grain ? name_of(*s.recompute_grain, kGrains) : "by the device"},
          {"lora-rank", s.parts.lora.rank == 0 ? "0 (no pairs)" : std::to_string(s.parts.lora.rank)},
          {"lora-alpha", s.parts.lora.alpha == 0 ? "the rank" : number_text(s.parts.lora.alpha)},
          {"lora-targets", s.parts.lora.targets},
          {"lora-experts", s.parts.lora.on_experts ? "true" : "false"},
          {"lora-dropout", number_text(s.parts.lora.dropout)},
          {"rslora", s.parts.lora.is_rank_stabilised ? "true" : "false"},
          {"dora", s.parts.lora.is_dora ? "true" : "false"},
          {"adapter", s.parts.adapter.empty() ? "none" : s.parts.adapter.string()},
          {"freeze", s.parts.freeze.empty() ? "nothing" : s.parts.freeze},
          {"train", s.parts.train.empty() ? "nothing" : s.parts.train},
          {"save-merged", s.saves_merged ? "true" : "false"},
          {"resume", s.resume ? s.resume->string() : "no"}};
}

}  // namespace rp
