// train/settings/options.h
// The options of `train`: their table, and their values as written on the command line or in a configuration file.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "train/settings/problems.h"

namespace rp {

// One option. The table of all of them makes the parser, --help, the keys of a configuration file and the test of the
// documentation.
struct TrainOption {
  const char* name;           // "batch-size", for --batch-size and the key batch-size
  const char* argument;       // "B" in the help, or "" for a switch
  const char* default_value;  // "" where there is none
  bool is_required;
  const char* help;
};
[[nodiscard]] const std::vector<TrainOption>& train_options();
// nullptr: there is none of that name.
[[nodiscard]] const TrainOption* find_option(std::string_view name);

// A value as text, and where it was written.
struct OptionValue {
  std::string text;    // of a switch: "true" or "false"
  std::string source;  // "--batch-size", or "run.toml:3: batch-size"
  bool is_from_file = false;
};

// By option name.
using OptionValues = std::map<std::string, OptionValue>;

// `arguments`: all after the program's own name. What is unknown, repeated or lacks a value goes to `problems`
// (kUsage).
[[nodiscard]] OptionValues read_command_line(const std::vector<std::string>& arguments, Problems& problems);

// Adds to `values` what the TOML file sets and the command line does not. What is wrong with the file goes to
// `problems` (kBadInput).
void add_config_file(const std::filesystem::path& file, OptionValues& values, Problems& problems);

[[nodiscard]] std::string train_help();

}  // namespace rp
