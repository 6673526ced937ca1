// common/system/cgroup.h
// What the control groups (v1 or v2) of this process allow it, and what they did to it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace rp {

class Cgroup {
 public:
  // Of this process. Never throws: what cannot be read limits nothing. `root` stands before /proc and /sys, for tests.
  [[nodiscard]] static Cgroup of_this_process(const std::string& root = "");
  // `mount`: the directory under which the hierarchies are mounted. `membership`: the text of /proc/PID/cgroup.
  Cgroup(std::filesystem::path mount, const std::string& membership);

  // CPUs' worth of time that may be used, the least of all levels; nullopt without a limit.
  [[nodiscard]] std::optional<double> cpu_quota() const;
  // Bytes that may still be taken, the least of all levels; nullopt without a limit. File pages that a group caches
  // count as free, since the kernel drops them first.
  [[nodiscard]] std::optional<std::uint64_t> memory_left_bytes() const;
  // How often the kernel's out-of-memory killer struck in this group so far; nullopt if it does not say.
  [[nodiscard]] std::optional<std::uint64_t> num_oom_kills() const;

 private:
  // This process's directory in the hierarchy of `controller` ("" for v2), then its parents up to the root; those that
  // exist.
  [[nodiscard]] std::vector<std::filesystem::path> levels(const std::string& controller) const;

  std::filesystem::path mount_;
  std::string membership_;
};

}  // namespace rp
