// common/option_spec.h
// Describes an option of a command line. Tables of these make the parser, its --help and the test
// of the documentation.
#pragma once

namespace rp {

struct OptionSpec {
  const char* letter;    // "n", or "" for none
  const char* name;      // "workers", for --workers
  const char* argument;  // "N" in the help, or "" for a switch
  const char* variable;  // "RP_WORKERS", or "" for none
  const char* help;
};

}  // namespace rp
