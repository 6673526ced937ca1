#include "launcher/process/process_stat.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "common/text.h"

namespace rp {

namespace {

std::vector<std::filesystem::path> threads_of(pid_t pid) {
  std::vector<std::filesystem::path> threads;
  std::error_code error;  // a process that has ended has no threads
  std::filesystem::directory_iterator entry(cat("/proc/", pid, "/task"), error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
    threads.push_back(entry->path());
  return threads;
}

}  // namespace

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
  for (int i = 0; i < 6; ++i) fields >> ignored;
  fields >> stat.start_ticks;
  return stat;
}

ProcessMemory process_memory(pid_t pid) {
  ProcessMemory memory;
  std::ifstream file(cat("/proc/", pid, "/status"));
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string name;
    std::uint64_t kib = 0;
    fields >> name >> kib;
    if (name == "RssAnon:" || name == "RssFile:") memory.own_bytes += kib << 10U;
    if (name == "RssShmem:") memory.shared_bytes = kib << 10U;
  }
  return memory;
}

pid_t tracer_of(pid_t pid) {
  constexpr std::string_view kField = "TracerPid:";
  std::ifstream file(cat("/proc/", pid, "/status"));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kField)) return std::stoi(line.substr(kField.size()));
  }
  return 0;
}

std::int64_t run_delay_ns(pid_t pid) {
  std::int64_t longest_ns = 0;
  for (const std::filesystem::path& thread : threads_of(pid)) {
    std::ifstream file(thread / "schedstat");
    std::int64_t run_ns = 0, delay_ns = 0;
    if (file >> run_ns >> delay_ns) longest_ns = std::max(longest_ns, delay_ns);
  }
  return longest_ns;
}

pid_t thread_named(pid_t pid, const std::string& name) {
  for (const std::filesystem::path& thread : threads_of(pid)) {
    std::string found;
    if (std::getline(std::ifstream(thread / "comm"), found) && found == name) return std::stoi(thread.filename());
  }
  return pid;
}

}  // namespace rp
