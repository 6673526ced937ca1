// launcher/machine/limits.h
// What the machine and its administrator let a run have, and what of it is in the way.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rp {

struct MachineLimits {
  std::uint64_t memory_bytes = 0;
  std::uint64_t available_bytes = 0;                // free, or caches
  std::optional<std::uint64_t> group_left_bytes{};  // by the memory control groups; nullopt: no limit
  std::optional<std::uint64_t> shm_bytes{};         // of /dev/shm; nullopt: there is none
  std::uint64_t shm_free_bytes = 0;
  std::optional<std::uint64_t> locked_bytes{};  // ulimit -l; nullopt: no limit
  std::uint64_t open_files = 0;                 // ulimit -Hn
  std::uint64_t map_count = 0;                  // vm.max_map_count; 0: unknown
  std::string huge_pages{};                     // of shared memory: "always", "never" ...; "": unknown
  std::string kernel{};                         // its release, as "6.12.3-generic"; "": unknown
  std::uint64_t movable_bytes = 0;              // in the zone whose pages the kernel must be able to move
};

// `root` stands before /proc, /sys and /dev, for tests.
[[nodiscard]] MachineLimits observe_limits(const std::string& root = "");

struct LimitLine {
  std::string key{};        // "shm"
  std::string name{};       // "/dev/shm"
  std::string value{};      // "64.0 MiB, 64.0 MiB free"
  std::string advice{};     // what that means and what to do; empty: it is fine
  bool is_problem = false;  // else the advice is good to know
};
[[nodiscard]] std::vector<LimitLine> limit_lines(const MachineLimits& limits);

}  // namespace rp
