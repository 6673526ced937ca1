// train/settings/options.h
// Defines the options of `train`, and reads their values from the command line or a configuration
// file.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "train/settings/problems.h"

namespace rp {

// One option. The parser, --help, the keys of a configuration file and the test of the
// documentation are all derived from the table of options.
struct TrainOption {
  const char* name;           // e.g. "batch-size", for --batch-size and the key batch-size
  const char* argument;       // as shown in the help, e.g. "B"; "" for a switch
  const char* default_value;  // "" if there is none
  bool is_required;
  const char* help;
};
[[nodiscard]] const std::vector<TrainOption>& train_options();
// Returns nullptr if there is no option of this name.
[[nodiscard]] const TrainOption* find_option(std::string_view name);

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
