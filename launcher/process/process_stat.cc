#include "launcher/process/process_stat.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "common/system/kernel_file.h"
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

// Parses the text after the last ')', because a program's name may contain brackets and spaces.
ProcessStat stat_of(const std::filesystem::path& process_or_thread) {
  const std::string text = kernel_file_text(process_or_thread / "stat");
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

}  // namespace

ProcessStat process_stat(pid_t pid) { return stat_of(cat("/proc/", pid)); }

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

std::vector<ThreadTimes> thread_times(pid_t pid) {
  std::vector<ThreadTimes> times;
  for (const std::filesystem::path& thread : threads_of(pid)) {
    ThreadTimes found{.thread = std::stoi(thread.filename()), .state = stat_of(thread).state};
    std::ifstream file(thread / "schedstat");
    if (file >> found.run_ns >> found.delay_ns) times.push_back(found);
  }
  return times;
}

pid_t thread_named(pid_t pid, const std::string& name) {
  for (const std::filesystem::path& thread : threads_of(pid)) {
    std::string found;
    if (std::getline(std::ifstream(thread / "comm"), found) && found == name) return std::stoi(thread.filename());
  }
  return pid;
}

}  // namespace rp
