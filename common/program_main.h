// common/program_main.h
// What the mains of our programs share: their output, and the exit code of what they throw.
#pragma once

#include <exception>
#include <iostream>
#include <string>

#include "common/printable.h"
#include "roundpipe/error.h"

namespace rp {

// To standard output. Returns the exit code.
inline int print_output(const std::string& text) {
  std::cout << text << std::flush;
  return static_cast<int>(std::cout ? ExitCode::kOk : ExitCode::kOutputFailed);
}

// What `run()` returns; an exception is printed behind the program's name, and its code returned.
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
