#include "common/system/cgroup.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <system_error>

#include "common/system/kernel_file.h"

namespace rp {

namespace fs = std::filesystem;

namespace {

// v2: the file contains "max 100000" or "150000 100000" (microseconds: quota, period).
std::optional<double> quota_v2(const fs::path& level) {
  std::istringstream text(kernel_file_text(level / "cpu.max"));
  double quota_us = 0;
  double period_us = 0;
  if (!(text >> quota_us >> period_us) || quota_us <= 0 || period_us <= 0) return std::nullopt;
  return quota_us / period_us;
}

// v1: a quota of -1 means no limit.
std::optional<double> quota_v1(const fs::path& level) {
  std::istringstream text(kernel_file_text(level / "cpu.cfs_quota_us") + " " +
                          kernel_file_text(level / "cpu.cfs_period_us"));
  double quota_us = 0;
  double period_us = 0;
  if (!(text >> quota_us >> period_us) || quota_us <= 0 || period_us <= 0) return std::nullopt;
  return quota_us / period_us;
}

// The files in which a version of control groups reports memory.
struct MemoryFiles {
  const char* limit;
  const char* usage;
  const char* peak;
  std::array<const char*, 2> cache;  // lines of memory.stat that count file pages
};
constexpr MemoryFiles kMemoryV1 = {"memory.limit_in_bytes",
                                   "memory.usage_in_bytes",
                                   "memory.max_usage_in_bytes",
                                   {"total_inactive_file", "total_active_file"}};
constexpr MemoryFiles kMemoryV2 = {"memory.max", "memory.current", "memory.peak", {"inactive_file", "active_file"}};

std::optional<std::uint64_t> number_in(const fs::path& file) {
  std::istringstream text(kernel_file_text(file));
  std::uint64_t number = 0;
  if (!(text >> number)) return std::nullopt;  // absent, or "max"
  return number;
}

// Returns the number after `key` in a file of lines "key number".
std::optional<std::uint64_t> number_of(const fs::path& file, const std::string& key) {
  std::istringstream text(kernel_file_text(file));
  std::string word;
  std::uint64_t number = 0;
  while (text >> word >> number) {
    if (word == key) return number;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> memory_left(const fs::path& level, const MemoryFiles& files) {
  const auto most = number_in(level / files.limit);
  const auto used = number_in(level / files.usage);
  if (!most || !used) return std::nullopt;
  std::uint64_t cached = 0;
  for (const char* line : files.cache) cached += number_of(level / "memory.stat", line).value_or(0);
  const std::uint64_t needed = *used - std::min(*used, cached);
  return *most - std::min(*most, needed);
}

void take_lowest(std::optional<CgroupMemory>& lowest, const fs::path& level, const MemoryFiles& files) {
  constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60U;  // version 1 has a number for it
  const auto limit = number_in(level / files.limit);
  if (!limit || *limit >= kNoLimit || (lowest && lowest->limit_bytes <= *limit)) return;
  lowest = CgroupMemory{.limit_bytes = *limit, .peak_bytes = number_in(level / files.peak)};
}

template <typename T>
void take_least(std::optional<T>& least, std::optional<T> value) {
  if (value) least = least ? std::min(*least, *value) : *value;
}

bool names_controller(const std::string& list, const std::string& controller) {
  if (controller.empty() || list.empty()) return controller == list;
  std::istringstream text(list);
  for (std::string name; std::getline(text, name, ',');) {
    if (name == controller) return true;
  }
  return false;
}

bool directory_exists(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// Returns root/path and its parents up to root, without those that do not exist. In a container,
// the path may be that of the host; then only the root exists.
std::vector<fs::path> existing_levels(const fs::path& root, const fs::path& path) {
  std::vector<fs::path> levels{root};
  fs::path level = root;
  for (const fs::path& part : path) {
    level /= part;
    if (directory_exists(level)) levels.insert(levels.begin(), level);
  }
  return levels;
}

}  // namespace

Cgroup Cgroup::of_this_process(const std::string& root) {
  return Cgroup(root + "/sys/fs/cgroup", kernel_file_text(root + "/proc/self/cgroup"));
}

Cgroup::Cgroup(fs::path mount, const std::string& membership) : mount_(std::move(mount)), membership_(membership) {}

std::vector<fs::path> Cgroup::levels(const std::string& controller) const {
  std::istringstream lines(membership_);
  for (std::string line; std::getline(lines, line);) {  // "4:memory:/path", v2: "0::/path"
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string list = line.substr(first + 1, second - first - 1);
    if (!names_controller(list, controller)) continue;
    const fs::path path = fs::path(line.substr(second + 1)).relative_path();
    const std::vector<fs::path> roots =
        controller.empty() ? std::vector{mount_ / "unified", mount_} : std::vector{mount_ / list, mount_ / controller};
    const auto root = std::find_if(roots.begin(), roots.end(), directory_exists);
    if (root != roots.end()) return existing_levels(*root, path);
  }
  return {};
}

std::optional<double> Cgroup::cpu_quota() const {
  std::optional<double> least;
  for (const fs::path& level : levels("")) take_least(least, quota_v2(level));
  for (const fs::path& level : levels("cpu")) take_least(least, quota_v1(level));
  return least;
}

std::optional<std::uint64_t> Cgroup::memory_left_bytes() const {
  std::optional<std::uint64_t> least;
  for (const fs::path& level : levels("")) take_least(least, memory_left(level, kMemoryV2));
  for (const fs::path& level : levels("memory")) take_least(least, memory_left(level, kMemoryV1));
  return least;
}

std::optional<CgroupMemory> Cgroup::memory_limit() const {
  std::optional<CgroupMemory> lowest;
  for (const fs::path& level : levels("")) take_lowest(lowest, level, kMemoryV2);
  for (const fs::path& level : levels("memory")) take_lowest(lowest, level, kMemoryV1);
  return lowest;
}

std::optional<std::uint64_t> Cgroup::num_oom_kills() const {
  for (const fs::path& level : levels("")) {
    if (const auto number = number_of(level / "memory.events", "oom_kill")) return number;
  }
  for (const fs::path& level : levels("memory")) {
    if (const auto number = number_of(level / "memory.oom_control", "oom_kill")) return number;
  }
  return std::nullopt;
}

}  // namespace rp
