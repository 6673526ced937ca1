// roundpipe/memory_plan.h
// Memory by purpose: the host memory that a run plans to use and uses, and the memory that its
// workers have used.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rp {

// The host memory of one pipeline (Pipeline::memory_plan()) or of all pipelines of a session
// (Session::memory_plan()).
struct MemoryPlan {
  // The memory for one purpose.
  struct Item {
    std::string purpose;      // as printed
    std::uint64_t bytes = 0;  // planned
    // The bytes that the kernel has allocated at this moment. Set only for a session, because its
    // pipelines share their segments.
    std::optional<std::uint64_t> measured_bytes{};
    bool is_in_files = false;  // stored in files under SessionOptions::params_on instead of in memory
  };
  // Weights, gradients and optimizer state; for a session also control; on several nodes also the
  // buffers for gradients of other nodes, which are not measured. The item "activations"
  // comes last, and only after a round has ended, because the sizes of activations are not known
  // earlier: it is the memory that the kinds of rounds so far need when they follow each other.
  std::vector<Item> items;
  std::int64_t num_parameters = 0;  // tied ones count once
  double bytes_per_parameter = 0;   // bytes of weights, gradients and optimizer state
  // For a session: the page size that the kernel uses for these three, and how to get larger pages,
  // as printed. Empty if they are stored in files, or if the device is emulated.
  std::string pages{};

  // Returns the planned bytes of all items.
  [[nodiscard]] std::uint64_t bytes() const;
  // Returns the allocated bytes of the items that were measured.
  [[nodiscard]] std::uint64_t measured_bytes() const;
  // Returns the planned bytes of "activations", or nullopt before the first round has ended.
  [[nodiscard]] std::optional<std::uint64_t> activation_bytes() const;
};

// The memory that one worker has used since the run began (Session::worker_memory()): memory of its
// GPU, or, for a worker on processors, memory of the host that is not part of the MemoryPlan.
struct WorkerMemoryUse {
  // The memory for one purpose.
  struct Item {
    std::string purpose;           // as printed
    std::uint64_t peak_bytes = 0;  // the maximum at any time
  };
  int worker = 0;
  std::uint64_t limit_bytes = 0;  // what the worker allocated of its GPU's memory at the start; 0 on processors
  std::uint64_t peak_bytes = 0;   // the maximum that was in use at any time
  std::vector<Item> items;        // largest first; their maxima may be at different times
  // Bytes of the host store that were copied through a pinned buffer, at a fraction of the normal
  // speed, because their memory was not yet registered with the driver.
  std::uint64_t staged_bytes = 0;
};

}  // namespace rp
