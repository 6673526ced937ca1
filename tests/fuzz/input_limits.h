// tests/fuzz/input_limits.h
// What one input may take, and what is done where it takes more or ends the process: the input is saved, and the
// command printed that repeats it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rp::fuzz {

// Of one input. Processor time, since a wall clock would blame an input for what else runs on the machine; the wall
// clock's limit is for what waits for something.
inline constexpr std::int64_t kMaxProcessorSeconds = 1;
inline constexpr std::int64_t kMaxSeconds = 10;
inline constexpr std::int64_t kMaxBytes = std::int64_t{1} << 30;

// Watches this process from now on. `program` and `target` are the words of the command that repeats a failure; the
// file with the input is written to the present directory. REQUIRES: built with AddressSanitizer; called once.
void watch_inputs(const std::string& program, const std::string& target);

// `input` lives until end_input().
void begin_input(std::string_view input);

struct InputCost {
  double ms = 0;           // by the wall clock
  std::int64_t bytes = 0;  // the most that was allocated at once
};
InputCost end_input();

// Reports the present input and ends the process with exit code 1. `why`: "is refused, but ...".
[[noreturn]] void fail_input(const char* why);

}  // namespace rp::fuzz
