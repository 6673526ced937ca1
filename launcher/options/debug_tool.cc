#include "launcher/options/debug_tool.h"

#include <sstream>

#include "hoststore/control.h"
#include "launcher/process/runtime_settings.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

// Returns the words of a command, or of the name of a tool that needs arguments to run a program.
std::vector<std::string> tool_command(const std::string& text) {
  std::istringstream in(text == "gdb" || text == "cuda-gdb" ? text + " --quiet --args"
                        : text == "nsys"                    ? "nsys profile"
                                                            : text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

}  // namespace

DebugTool parse_debug_tool(const std::string& name, const std::string& value) {
  const std::size_t equals = value.find('=');
  DebugTool tool{.worker = parse_count(name, value.substr(0, equals), 0, kMaxWorkers - 1),
                 .command = tool_command(equals == std::string::npos ? "gdb" : value.substr(equals + 1))};
  if (tool.command.empty()) {
    throw Error(ExitCode::kUsage, name + " " + value + " names no tool: write " + value +
                                      "gdb, cuda-gdb, compute-sanitizer, valgrind, nsys, or a command");
  }
  return tool;
}

}  // namespace rp
