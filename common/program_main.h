// common/program_main.h
// The functions that the mains of this project's programs share: they print output and map
// exceptions to exit codes.
#pragma once

#include <exception>
#include <iostream>
#include <string>

#include "common/printable.h"
#include "roundpipe/error.h"

namespace rp {

// Prints to standard output. Returns the exit code.
inline int print_output(const std::string& text) {
  std::cout << text << std::flush;
  return static_cast<int>(std::cout ? ExitCode::kOk : ExitCode::kOutputFailed);
}

// Returns the result of `run()`. If it throws, prints the exception after the program's name and
// returns the exception's exit code. Differs from describe_current_exception() on purpose: these programs run no user
// code, so an exception that is no rp::Error is a fault of ours.
template <typename Run>
int run_program(const char* name, Run&& run) {
  try {
    return run();
  } catch (const Error& error) {
    std::cerr << name << ": " << printable(error.what()) << "\n";
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << name << ": internal error: " << printable(error.what()) << "; please report it\n";
    return static_cast<int>(ExitCode::kLauncherFailed);
  }
}

}  // namespace rp
