// tests/fuzz/input_limits.h
// Limits the resources of one input. If an input exceeds them or ends the process, the input is
// saved, and the command that repeats it is printed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rp::fuzz {

// Limits for one input. CPU time is used because a wall clock would blame an input for other
// processes on the machine. The wall clock's limit is for inputs that wait for something.
inline constexpr std::int64_t kMaxProcessorSeconds = 1;
inline constexpr std::int64_t kMaxSeconds = 10;
inline constexpr std::int64_t kMaxBytes = std::int64_t{1} << 30;

// Watches this process from now on. `program` and `target` are the words of the command that
// repeats a failure. The file with the input is written to the current directory. REQUIRES: built
// with AddressSanitizer; called once.
void watch_inputs(const std::string& program, const std::string& target);

// REQUIRES: `input` exists until end_input().
void begin_input(std::string_view input);

struct InputCost {
  double ms = 0;           // by the wall clock
  std::int64_t bytes = 0;  // the largest amount allocated at once
};
InputCost end_input();

// Reports the current input and ends the process with exit code 1. `why`: such as "is refused, but ...".
[[noreturn]] void fail_input(const char* why);

}  // namespace rp::fuzz
