#include "hoststore/memory_limit.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace rp {

namespace {

std::optional<std::uint64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (!(file >> value)) return std::nullopt;  // absent, or "max"
  return value;
}

// Keeps the least of what the group at `path` and its parents leave.
std::uint64_t left_in_groups(const std::string& mount, std::string path, const char* limit, const char* usage) {
  std::uint64_t left = std::numeric_limits<std::uint64_t>::max();
  while (true) {
    const auto most = read_number(mount + path + "/" + limit);
    const auto used = read_number(mount + path + "/" + usage);
    if (most && used) left = std::min(left, *most > *used ? *most - *used : 0);
    if (path.empty() || path == "/") return left;
    path.resize(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
  }
}

std::uint64_t left_in_control_groups(const std::string& root) {
  std::uint64_t left = std::numeric_limits<std::uint64_t>::max();
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      left = std::min(left, left_in_groups(root + "/sys/fs/cgroup", path, "memory.max", "memory.current"));
    } else if (controllers.find(",memory,") != std::string::npos) {
      left = std::min(left, left_in_groups(root + "/sys/fs/cgroup/memory", path, "memory.limit_in_bytes",
                                           "memory.usage_in_bytes"));
    }
  }
  return left;
}

std::uint64_t available_in_machine(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t kib = 0;
    if (words >> name >> kib && name == "MemAvailable:") return kib * 1024;
  }
  return std::numeric_limits<std::uint64_t>::max();
}

}  // namespace

std::uint64_t available_memory(const std::string& root) {
  return std::min(available_in_machine(root), left_in_control_groups(root));
}

}  // namespace rp
