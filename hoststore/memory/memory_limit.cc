#include "hoststore/memory/memory_limit.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

#include "common/system/cgroup.h"

namespace rp {

namespace {

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
  const std::uint64_t in_machine = available_in_machine(root);
  return std::min(in_machine, Cgroup::of_this_process(root).memory_left_bytes().value_or(in_machine));
}

}  // namespace rp
