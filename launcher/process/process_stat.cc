#include "launcher/process/process_stat.h"

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "common/text.h"

namespace rp {

// Parses the text after the last ')', because a program's name may contain brackets and spaces.
ProcessStat process_stat(pid_t pid) {
  std::ifstream file(cat("/proc/", pid, "/stat"));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t bracket = text.rfind(')');
  if (bracket == std::string::npos) return {};
  std::istringstream fields(text.substr(bracket + 1));
  ProcessStat stat;
  fields >> stat.state;
  std::string ignored;
  for (int i = 0; i < 10; ++i) fields >> ignored;
  std::uint64_t user = 0, system = 0;
  fields >> user >> system;
  stat.cpu_ticks = user + system;
  return stat;
}

}  // namespace rp
