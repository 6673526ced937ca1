// common/system/cgroup.h
// Reads what the control groups (v1 or v2) of this process allow, and how often they ran out of
// memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace rp {

// The memory limit of a control group, and how much its processes have used.
struct CgroupMemory {
  std::uint64_t limit_bytes = 0;
  std::optional<std::uint64_t> peak_bytes = std::nullopt;  // the highest use so far; nullopt: the kernel does not tell

  bool operator==(const CgroupMemory&) const = default;
};

class Cgroup {
 public:
  // Returns the control groups of this process. Never throws: a value that cannot be read counts as
  // no limit. Tests set `root`, which is prepended to /proc and /sys.
  [[nodiscard]] static Cgroup of_this_process(const std::string& root = "");
  // `mount`: the directory under which the hierarchies are mounted. `membership`: the text of /proc/PID/cgroup.
  Cgroup(std::filesystem::path mount, const std::string& membership);

  // Returns how many CPUs' worth of time may be used: the minimum over all levels, or nullopt if
  // there is no limit.
  [[nodiscard]] std::optional<double> cpu_quota() const;
  // Returns how many bytes may still be allocated: the minimum over all levels, or nullopt if there
  // is no limit. File pages that a group caches count as free, because the kernel drops them first.
  [[nodiscard]] std::optional<std::uint64_t> memory_left_bytes() const;
  // Returns the limit of the level with the lowest one, or nullopt if there is no limit.
  [[nodiscard]] std::optional<CgroupMemory> memory_limit() const;
  // Returns how often the kernel's out-of-memory killer has killed a process of this group, or
  // nullopt if the kernel does not report it.
  [[nodiscard]] std::optional<std::uint64_t> num_oom_kills() const;

 private:
  // Returns this process's directory in the hierarchy of `controller` ("" for v2), then its parents
  // up to the root. Omits those that do not exist.
  [[nodiscard]] std::vector<std::filesystem::path> levels(const std::string& controller) const;

  std::filesystem::path mount_;
  std::string membership_;
};

}  // namespace rp
