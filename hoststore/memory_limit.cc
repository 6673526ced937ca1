#include "hoststore/memory_limit.h"

#include <algorithm>
#include <array>
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

// Where a version of control groups keeps its numbers.
struct GroupFiles {
  const char* mount;
  const char* limit;
  const char* usage;
  std::array<const char*, 2> cache;  // lines of memory.stat: file pages, which the kernel drops when memory is short
};

constexpr GroupFiles kVersion1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                  {"total_inactive_file", "total_active_file"}};
constexpr GroupFiles kVersion2 = {"/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file", "active_file"}};

std::uint64_t cache_of_group(const std::string& directory, const GroupFiles& files) {
  std::uint64_t bytes = 0;
  std::ifstream stat(directory + "/memory.stat");
  std::string name;
  std::uint64_t value = 0;
  while (stat >> name >> value) {
    if (name == files.cache[0] || name == files.cache[1]) bytes += value;
  }
  return bytes;
}

// The least of what the group at `path` and its parents leave.
std::uint64_t left_in_groups(const std::string& root, std::string path, const GroupFiles& files) {
  std::uint64_t left = std::numeric_limits<std::uint64_t>::max();
  while (true) {
    const std::string directory = root + files.mount + path;
    const auto most = read_number(directory + "/" + files.limit);
    const auto used = read_number(directory + "/" + files.usage);
    if (most && used) {
      const std::uint64_t needed = *used - std::min(*used, cache_of_group(directory, files));
      left = std::min(left, *most - std::min(*most, needed));
    }
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
      left = std::min(left, left_in_groups(root, path, kVersion2));
    } else if (controllers.find(",memory,") != std::string::npos) {
      left = std::min(left, left_in_groups(root, path, kVersion1));
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
