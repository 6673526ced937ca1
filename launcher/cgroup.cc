#include "launcher/cgroup.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <system_error>

namespace rp {

namespace fs = std::filesystem;

namespace {

std::string file_text(const fs::path& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// v2: "max 100000" or "150000 100000" (microseconds a period).
std::optional<double> quota_v2(const fs::path& level) {
  std::istringstream text(file_text(level / "cpu.max"));
  double quota_us = 0;
  double period_us = 0;
  if (!(text >> quota_us >> period_us) || quota_us <= 0 || period_us <= 0) return std::nullopt;
  return quota_us / period_us;
}

// v1: -1 is no limit.
std::optional<double> quota_v1(const fs::path& level) {
  std::istringstream text(file_text(level / "cpu.cfs_quota_us") + " " + file_text(level / "cpu.cfs_period_us"));
  double quota_us = 0;
  double period_us = 0;
  if (!(text >> quota_us >> period_us) || quota_us <= 0 || period_us <= 0) return std::nullopt;
  return quota_us / period_us;
}

// The number after `key` in a file of lines "key number".
std::optional<std::uint64_t> number_of(const fs::path& file, const std::string& key) {
  std::istringstream text(file_text(file));
  std::string word;
  std::uint64_t number = 0;
  while (text >> word >> number) {
    if (word == key) return number;
  }
  return std::nullopt;
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

// root/path and its parents up to root. In a container the path may be the host's: then only the root exists.
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

Cgroup Cgroup::of_this_process() { return Cgroup("/sys/fs/cgroup", file_text("/proc/self/cgroup")); }

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
    const std::vector<fs::path> roots = controller.empty() ? std::vector{mount_ / "unified", mount_}
                                                           : std::vector{mount_ / list, mount_ / controller};
    const auto root = std::find_if(roots.begin(), roots.end(), directory_exists);
    if (root != roots.end()) return existing_levels(*root, path);
  }
  return {};
}

std::optional<double> Cgroup::cpu_quota() const {
  std::optional<double> least;
  const auto take = [&least](std::optional<double> quota) {
    if (quota) least = least ? std::min(*least, *quota) : *quota;
  };
  for (const fs::path& level : levels("")) take(quota_v2(level));
  for (const fs::path& level : levels("cpu")) take(quota_v1(level));
  return least;
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
