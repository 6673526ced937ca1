#include "launcher/process/watching_tool.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "common/text.h"

namespace rp {

namespace {

// Prefixes of the names of variables that tools set for the processes they watch.
constexpr std::array<std::string_view, 6> kVariables = {
    "CUDA_INJECTION64_PATH",    // a library that the CUDA driver loads: Nsight, sanitizers, users of CUPTI
    "NVTX_INJECTION64_PATH",    // a library that NVTX loads
    "NV_SANITIZER_INJECTION_",  // compute-sanitizer
    "NV_COMPUTE_PROFILER_",     // Nsight Compute
    "NV_NSIGHT_INJECTION_",     // Nsight Compute
    "NSYS_PROFILING_SESSION_ID",
};

// Parts of the file names of libraries that tools preload.
constexpr std::array<std::string_view, 9> kLibraries = {
    "libasan",      "liblsan",      "libtsan",        "libubsan",
    "libclang_rt.", "TreeLauncher", "ToolsInjection", "InterceptorInjection",
    "vgpreload"};

// Returns the first preloaded library that belongs to a tool, or an empty text. The libraries in
// `preloaded` are separated by colons or spaces.
std::string_view tool_library(std::string_view preloaded) {
  while (!preloaded.empty()) {
    const std::string_view path = preloaded.substr(0, preloaded.find_first_of(": "));
    preloaded.remove_prefix(std::min(preloaded.size(), path.size() + 1));
    const std::string_view name = path.substr(path.find_last_of('/') + 1);
    const auto is_in_name = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
    if (std::any_of(kLibraries.begin(), kLibraries.end(), is_in_name)) return path;
  }
  return {};
}

}  // namespace

std::string watching_tool(const char* const* environment) {
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const std::string_view name = entry.substr(0, entry.find('='));
    const std::string_view value = entry.substr(std::min(entry.size(), name.size() + 1));
    if (value.empty()) continue;
    if (std::any_of(kVariables.begin(), kVariables.end(),
                    [&](std::string_view start) { return name.starts_with(start); })) {
      return std::string(name);
    }
    const std::string_view library = name == "LD_PRELOAD" ? tool_library(value) : std::string_view();
    if (!library.empty()) return cat("LD_PRELOAD=", library);
  }
  return {};
}

std::string watching_tool() { return watching_tool(environ); }

}  // namespace rp
