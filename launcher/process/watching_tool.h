// launcher/process/watching_tool.h
// Detects whether a profiler or sanitizer watches this process. Such a tool writes its report while
// the process ends, from exit handlers and from driver calls that free memory, and that takes
// seconds.
#pragma once

#include <string>

namespace rp {

// Returns the variable that reveals the tool: "CUDA_INJECTION64_PATH", or
// "LD_PRELOAD=.../libasan.so.8". Empty if no tool watches. docs/launcher.md lists the variables
// that count. `environment` is a list of NAME=VALUE that ends with a null pointer.
[[nodiscard]] std::string watching_tool(const char* const* environment);
// Returns the same for the environment of this process.
[[nodiscard]] std::string watching_tool();

}  // namespace rp
