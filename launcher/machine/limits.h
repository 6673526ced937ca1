// launcher/machine/limits.h
// Observes the limits that the machine and its administrator set for a run, and formats them with
// advice.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rp {

struct MachineLimits {
  std::uint64_t memory_bytes = 0;
  std::uint64_t available_bytes = 0;                // free memory and reclaimable caches
  std::optional<std::uint64_t> group_left_bytes{};  // left by the memory control groups; nullopt: no limit
  std::optional<std::uint64_t> shm_bytes{};         // size of /dev/shm; nullopt: it does not exist
  std::uint64_t shm_free_bytes = 0;
  std::optional<std::uint64_t> locked_bytes{};  // ulimit -l; nullopt: no limit
  std::uint64_t open_files = 0;                 // ulimit -Hn
  std::uint64_t map_count = 0;                  // vm.max_map_count; 0: unknown
  std::string huge_pages{};                     // setting for shared memory: "always", "never" ...; "": unknown
  std::string kernel{};                         // its release, such as "6.12.3-generic"; "": unknown
  std::uint64_t movable_bytes = 0;              // memory in ZONE_MOVABLE, whose pages the kernel must be able to move
};

// `root` is prepended to /proc, /sys and /dev, for tests.
[[nodiscard]] MachineLimits observe_limits(const std::string& root = "");

struct LimitLine {
  std::string key{};        // "shm"
  std::string name{};       // "/dev/shm"
  std::string value{};      // "64.0 MiB, 64.0 MiB free"
  std::string advice{};     // what the value means and what to do; empty: no advice
  bool is_problem = false;  // false: the advice is for information
};
[[nodiscard]] std::vector<LimitLine> limit_lines(const MachineLimits& limits);

}  // namespace rp
