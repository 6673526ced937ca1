// launcher/process/watching_tool.h
// Whether a profiler or sanitizer watches this process. Such a tool writes its report while the process ends, from its
// handlers of the end and from what the driver calls when memory is given back, and that takes seconds.
#pragma once

#include <string>

namespace rp {

// What shows the tool: "CUDA_INJECTION64_PATH", or "LD_PRELOAD=.../libasan.so.8"; empty: none watches. Which variables
// count is listed in docs/launcher.md. `environment` is a list of NAME=VALUE with a null pointer at its end.
[[nodiscard]] std::string watching_tool(const char* const* environment);
// Of this process, by the environment that it was started with.
[[nodiscard]] std::string watching_tool();

}  // namespace rp
