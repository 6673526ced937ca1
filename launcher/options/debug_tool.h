// launcher/options/debug_tool.h
// The tool under which one worker runs: --debug-worker.
#pragma once

#include <string>
#include <vector>

namespace rp {

struct DebugTool {
  int worker = 0;
  std::vector<std::string> command;  // the tool and its own arguments; the worker's command follows them
};

// Reads "2", which means gdb, "2=valgrind", or "2=gdb -x script --args". `name` is what the user wrote:
// "--debug-worker". Throws rp::Error (kUsage).
[[nodiscard]] DebugTool parse_debug_tool(const std::string& name, const std::string& value);

}  // namespace rp
