// common/command_line/option_spec.h
// Describes the options of a program as a table, from which its parser, its --help and the table in its documentation
// are made.
#pragma once

#include <cxxopts.hpp>
#include <string>
#include <vector>

namespace rp {

struct OptionSpec {
  const char* letter = "";        // "n", or "" for none
  const char* name;               // "workers", for --workers
  const char* argument = "";      // "N" in the help, or "" for a switch
  const char* variable = "";      // "RP_WORKERS", or "" for none
  const char* default_text = "";  // "the usable cores", or "" for none
  const char* concerns = "";      // for the documentation: the processes that use it; "" if that says nothing
  const char* help;
  const char* details = "";  // Markdown for the documentation, in place of `help`; "" if that says it all
};

// Makes the parser of a program. `usage`: what follows the program's name in the first line of the help.
[[nodiscard]] cxxopts::Options option_parser(const std::string& program, const std::string& purpose,
                                             const std::string& usage, const std::vector<OptionSpec>& specs);

// Returns the rows of a Markdown table: option, variable, default, concerns, meaning. Variable and concerns are left
// out if no option has one.
[[nodiscard]] std::vector<std::string> option_rows(const std::vector<OptionSpec>& specs);

}  // namespace rp
