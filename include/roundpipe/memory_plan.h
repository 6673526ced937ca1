// roundpipe/memory_plan.h
// Memory by purpose: what a run plans to take of the host's, what it takes, and what its workers have taken.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rp {

// Of one pipeline (Pipeline::memory_plan()), or of all pipelines of a session together (Session::memory_plan()).
struct MemoryPlan {
  // Memory with one purpose.
  struct Item {
    std::string purpose;      // as it is printed
    std::uint64_t bytes = 0;  // planned
    // Allocated to it by the kernel at this moment. Of a session only: its pipelines share their segments.
    std::optional<std::uint64_t> measured_bytes{};
    bool is_in_files = false;  // under SessionOptions::params_on instead of in memory
  };
  // Weights, gradients, optimizer state; of a session also control. "activations", what the kinds of rounds so far need
  // while they follow each other, comes last, and only once a round has ended: its sizes are not known before.
  std::vector<Item> items;
  std::int64_t num_parameters = 0;  // tied ones once
  double bytes_per_parameter = 0;   // of weights, gradients and optimizer state
  // Of a session: what pages the kernel gives to these three, and what would give larger ones, as it is printed. Empty
  // where they are files, or the device is an emulated one.
  std::string pages{};

  // Planned, over all items.
  [[nodiscard]] std::uint64_t bytes() const;
  // Of those items that were measured.
  [[nodiscard]] std::uint64_t measured_bytes() const;
  // That of "activations"; nullopt before the first round has ended.
  [[nodiscard]] std::optional<std::uint64_t> activation_bytes() const;
};

// What one worker has had since the run began (Session::worker_memory()): of its GPU's memory, or of the host's on the
// processor, where it is not part of the MemoryPlan.
struct WorkerMemoryUse {
  // Memory with one purpose: the most that it had at once.
  struct Item {
    std::string purpose;           // as it is printed
    std::uint64_t peak_bytes = 0;  // at once
  };
  int worker = 0;
  std::uint64_t limit_bytes = 0;  // what the worker took of its GPU at its start; 0 on the processor
  std::uint64_t peak_bytes = 0;   // of that, in use at once
  std::vector<Item> items;        // the largest first, each at its own time
  // Of the host store, copied by way of a pinned buffer, at a fraction of the speed, where they were not registered
  // with the driver yet.
  std::uint64_t staged_bytes = 0;
};

}  // namespace rp
