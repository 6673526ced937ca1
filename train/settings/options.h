// train/settings/options.h
// Defines the options of `train` as one table, and reads their values from the command line or a
// configuration file.
//
// A new setting is a field of TrainSettings, a row of the table (option_table.cc), and the code that uses it.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/command_line/option_spec.h"
#include "train/settings/problems.h"
#include "train/settings/settings.h"

namespace rp {

class SettingReader;

// A row of the table. The parser, --help, the keys of a configuration file, the header of a run, the settings that a
// checkpoint keeps, and the table in docs/train.md are made from the rows.
struct TrainOption {
  OptionSpec spec;
  // Sets the fields of the option if it was given. Empty for options that are no settings (--config, --help,
  // --version).
  std::function<void(SettingReader& reader, TrainSettings& settings)> read{};
  // The setting in effect, or nothing if it has no meaning in this run. Empty for options that are not kept.
  std::function<std::optional<SettingRow>(const TrainSettings& settings)> row{};
  bool is_required = false;
  bool is_of_pairs = false;  // means nothing in a run without LoRA

  [[nodiscard]] const char* name() const { return spec.name; }
  [[nodiscard]] bool is_setting() const { return read != nullptr; }
};
[[nodiscard]] const std::vector<TrainOption>& train_options();
// Returns nullptr if there is no option of that name.
[[nodiscard]] const TrainOption* find_option(std::string_view name);
// The table without what only `train` does with it.
[[nodiscard]] std::vector<OptionSpec> train_option_specs();

// The value of an option as text, and where it was given.
struct OptionValue {
  std::string text;    // "true" or "false" for a switch
  std::string source;  // e.g. "--batch-size", or "run.toml:3: batch-size"
  bool is_from_file = false;
};

// The given values, by option name.
using OptionValues = std::map<std::string, OptionValue>;

// Reads the command line. `arguments`: all that follow the program's own name. Options that are
// unknown, repeated or lack a value are added to `problems` (kUsage).
[[nodiscard]] OptionValues read_command_line(const std::vector<std::string>& arguments, Problems& problems);

// Adds to `values` the settings of the TOML file that the command line does not set. Errors in the
// file are added to `problems` (kBadInput).
void add_config_file(const std::filesystem::path& file, OptionValues& values, Problems& problems);

[[nodiscard]] std::string train_help();

}  // namespace rp
