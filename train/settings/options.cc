#include "train/settings/options.h"

#include <cxxopts.hpp>
#include <set>
#include <utility>

#include "common/text.h"
#include "train/settings/toml_file.h"

namespace rp {
namespace {

bool is_switch(const TrainOption& option) { return option.argument[0] == '\0'; }

// Returns whether an option has a meaning in a configuration file.
bool is_setting(std::string_view name) { return name != "config" && name != "help" && name != "version"; }

cxxopts::Options make_parser() {
  cxxopts::Options parser("train", "Trains a causal language model on tokenized text.\n");
  parser.custom_help("--model DIR --data FILE --output DIR [options]").set_width(110);
  for (const TrainOption& option : train_options()) {
    std::string help = option.help;
    if (option.default_value[0] != '\0') help += cat(" (default: ", option.default_value, ")");
    if (is_switch(option)) {
      parser.add_options()(cat(option.name == std::string_view("help") ? "h," : "", option.name), help);
    } else {
      parser.add_options()(option.name, help, cxxopts::value<std::string>(), option.argument);
    }
  }
  return parser;
}

// Returns whether an option belongs to rp-launch. People sometimes give these to the program.
bool is_of_launcher(const std::string& name) {
  static const std::set<std::string> names = {"--workers",
                                              "-n",
                                              "--gpus",
                                              "--device",
                                              "--threads-per-worker",
                                              "--gpu-memory",
                                              "--params-on",
                                              "--plan",
                                              "--store",
                                              "--trace",
                                              "--wait-timeout",
                                              "--attach-timeout",
                                              "--check-consistency",
                                              "--gpu-profile",
                                              "--bind",
                                              "--log-dir"};
  return names.contains(name);
}

// Reports the words that no option took. A word after an unknown option is probably its value.
void report_unmatched(const std::vector<std::string>& words, Problems& problems) {
  std::vector<std::string> names;
  for (const TrainOption& option : train_options()) names.push_back(cat("--", option.name));
  bool is_value = false;
  for (const std::string& word : words) {
    if (word.size() > 1 && word[0] == '-') {
      const std::string name = word.substr(0, word.find('='));
      problems.add(ExitCode::kUsage,
                   is_of_launcher(name)
                       ? cat(name, " is an option of rp-launch: rp-launch ", word, " ... train ...")
                       : cat("unknown option ", name, did_you_mean(name, names), "; train --help lists the options"));
      is_value = name.size() == word.size();
    } else {
      if (!is_value)
        problems.add(ExitCode::kUsage, cat("'", word, "' belongs to no option; train --help lists the options"));
      is_value = false;
    }
  }
}

void add_entry(const std::filesystem::path& file, const TomlEntry& entry, OptionValues& values, Problems& problems) {
  const std::string source = cat(file.string(), ":", entry.line, ": ", entry.key);
  if (find_option(entry.key) == nullptr || !is_setting(entry.key)) {
    std::vector<std::string> names;
    for (const TrainOption& option : train_options()) {
      if (is_setting(option.name)) names.push_back(option.name);
    }
    problems.add(ExitCode::kBadInput, cat(source, ": no such setting", did_you_mean(entry.key, names),
                                          "; the keys are the options of train --help without the dashes in front"));
    return;
  }
  if (!entry.text) {
    problems.add(ExitCode::kBadInput, cat(source, " must be a number, a string or true / false"));
    return;
  }
  values.insert({entry.key, {*entry.text, source, true}});
}

}  // namespace

const std::vector<TrainOption>& train_options() {
  static const std::vector<TrainOption> options = {
      {"model", "DIR", "", true,
       "Hugging Face directory of the model to start from; on an emulated device also preset:NAME"},
      {"data", "FILE", "", true, "Token file, made by tools/prepare_data.py"},
      {"output", "DIR", "", true, "Where metrics, checkpoints and the trained model go; new or empty"},
      {"epochs", "X", "3", false, "How often the data are trained on; or give --max-steps"},
      {"max-steps", "N", "by --epochs", false, "Number of optimizer steps"},
      {"batch-size", "B", "16384 tokens", false, "Sequences a step"},
      {"num-microbatches", "M", "at most 8", false, "Microbatches a round; changes the rounding of the result"},
      {"sequence-length", "T", "at most 2048", false,
       "Tokens a sequence; by default 2048, or as many as the model has positions"},
      {"no-packing", "", "", false,
       "One document a sequence, padded; by default several are packed into one, and kept apart"},
      {"learning-rate", "X", "by the model", false,
       "Learning rate of AdamW, at its peak; by default by the number of parameters"},
      {"seed", "S", "1", false, "Seed of the order of the data"},
      {"rounds-per-step", "R", "1", false, "Rounds that a step's sequences are split over"},
      {"async", "", "", false, "Update during the next round, which uses weights one step older"},
      {"dtype", "bf16|fp16|fp32", "bf16", false,
       "What the layers compute in; the master weights are fp32; fp16 scales the loss"},
      {"max-grad-norm", "X", "1.0", false, "Clip the gradient to this global norm; 0: do not clip"},
      {"weight-decay", "X", "0", false, "Weight decay of AdamW"},
      {"decay-all", "", "", false, "Weight decay of norms and biases, too"},
      {"adam-beta1", "X", "0.9", false, "Decay of AdamW's mean of gradients"},
      {"adam-beta2", "X", "0.999", false, "Decay of AdamW's mean of their squares"},
      {"adam-epsilon", "X", "1e-8", false, "What AdamW adds to their root"},
      {"warmup-steps", "N", "3 % of the steps", false, "Steps in which the learning rate rises from 0"},
      {"lr-schedule", "constant|linear|cosine|wsd", "cosine", false,
       "Learning rate after the warm-up; wsd is constant and falls in the last steps"},
      {"min-learning-rate", "X", "0", false, "What the schedule falls to"},
      {"decay-steps", "N", "10 % of the steps", false, "The steps in which wsd falls"},
      {"z-loss", "X", "0", false, "Train also X times the squared logarithm of the softmax's denominator"},
      {"router-aux-loss", "X", "by the model", false,
       "Train also X times the loss that balances experts; by default as config.json says"},
      {"eval-data", "FILE", "", false,
       "Token file to evaluate on: loss and perplexity, before the first step and every so many"},
      {"eval-share", "X", "0", false, "Hold out this share of the documents of --data, and evaluate on them"},
      {"eval-every", "N", "10 times a run", false,
       "Steps from one evaluation to the next; there is one at the end in any case"},
      {"early-stop", "N", "never", false, "End after N evaluations without a better loss"},
      {"final-model", "last|best", "last", false,
       "The model that is written: of the last step, or of the best evaluation"},
      {"log-every", "N", "20 times a run", false, "On a terminal: steps from one kept line to the next"},
      {"save-every", "N|TIME", "15m", false,
       "Write a checkpoint every N steps, or 90s, 15m, 2h after the last one, and at the end; never: only by a signal"},
      {"save-total-limit", "N", "2 by time, else all", false, "Keep the newest N checkpoints"},
      {"recompute-grain", "stage|layer", "by the device", false,
       "What a backward computes again at once: layer takes less GPU memory, more host memory"},
      {"lora-rank", "R", "0", false,
       "Train pairs of rank R next to frozen weights (LoRA); final/ is then an adapter of PEFT"},
      {"lora-alpha", "X", "the rank", false, "Pairs are multiplied by alpha / R"},
      {"lora-targets", "NAMES", "all-linear", false,
       "Linear layers with pairs: all-linear, a list as q_proj,v_proj, or a regular expression"},
      {"lora-experts", "", "", false, "Experts and routers have pairs, too"},
      {"lora-dropout", "P", "0", false, "Dropout in front of the pairs"},
      {"rslora", "", "", false, "Pairs are multiplied by alpha / sqrt(R)"},
      {"dora", "", "", false, "Train the length of the weights' rows, too (DoRA)"},
      {"adapter", "DIR", "", false, "Begin from this adapter of PEFT, with its rank, alpha and targets"},
      {"freeze", "REGEX", "", false, "Do not train weights whose names match, as model.layers.7.mlp.up_proj.weight"},
      {"train", "REGEX", "", false, "Always train weights whose names match, also next to pairs"},
      {"save-merged", "", "", false, "Write merged/, too: the model with its adapter in the weights"},
      {"resume", "DIR|auto", "", false,
       "Go on from this checkpoint, or the newest one of this output directory; auto: from the newest whole one of "
       "--output, or begin"},
      {"export", "CHECKPOINT", "", false,
       "Train nothing: write the model of this checkpoint to --output, with the settings of its run"},
      {"config", "FILE.toml", "", false, "Read options from a file: batch-size = 8; the command line wins"},
      {"help", "", "", false, "Print this text"},
      {"version", "", "", false, "Print the version"},
  };
  return options;
}

const TrainOption* find_option(std::string_view name) {
  for (const TrainOption& option : train_options()) {
    if (name == option.name) return &option;
  }
  return nullptr;
}

OptionValues read_command_line(const std::vector<std::string>& arguments, Problems& problems) {
  std::vector<const char*> words{"train"};
  for (const std::string& argument : arguments) words.push_back(argument.c_str());
  OptionValues values;
  try {
    cxxopts::Options parser = make_parser();
    parser.allow_unrecognised_options();
    const cxxopts::ParseResult result = parser.parse(static_cast<int>(words.size()), words.data());
    report_unmatched(result.unmatched(), problems);
    for (const auto& given : result.arguments()) {
      const std::string source = cat("--", given.key());
      if (!values.insert({given.key(), {given.value(), source, false}}).second) {
        problems.add(ExitCode::kUsage, cat(source, " is given more than once; give it once"));
      }
    }
  } catch (const cxxopts::exceptions::exception& error) {
    problems.add(ExitCode::kUsage, cat(error.what(), "; train --help lists the options"));
  }
  return values;
}

void add_config_file(const std::filesystem::path& file, OptionValues& values, Problems& problems) {
  problems.collect([&] {
    for (const TomlEntry& entry : read_toml_file(file)) add_entry(file, entry, values, problems);
  });
}

std::string train_help() {
  return cat(make_parser().help(),
             "\nThe first three are required; on an emulated device (rp-launch --device sim:NAME) only the model.\n"
             "B sequences a step are split evenly over R rounds, each of M microbatches.\n"
             "docs/train.md says more, and describes the files in the output directory.\n");
}

}  // namespace rp
