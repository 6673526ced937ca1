#include "train/settings/options.h"

#include <cxxopts.hpp>
#include <set>

#include "common/text.h"
#include "train/settings/toml_file.h"

namespace rp {
namespace {

cxxopts::Options make_parser() {
  return option_parser("train", "Trains a causal language model on tokenized text.\n",
                       "--model DIR --data FILE --output DIR [options]", train_option_specs());
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
  for (const TrainOption& option : train_options()) names.push_back(cat("--", option.name()));
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
  if (const TrainOption* option = find_option(entry.key); option == nullptr || !option->is_setting()) {
    std::vector<std::string> names;
    for (const TrainOption& known : train_options()) {
      if (known.is_setting()) names.emplace_back(known.name());
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

const TrainOption* find_option(std::string_view name) {
  for (const TrainOption& option : train_options()) {
    if (name == option.name()) return &option;
  }
  return nullptr;
}

std::vector<OptionSpec> train_option_specs() {
  std::vector<OptionSpec> specs;
  for (const TrainOption& option : train_options()) specs.push_back(option.spec);
  return specs;
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
