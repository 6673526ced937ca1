// cuda/out_of_memory_report.h
// What to say when a worker's memory on its device is spent: what was wanted, what has it, what to change.
#pragma once

#include <cstdint>
#include <string>

#include "hoststore/memory_use.h"

namespace rp {

struct MemoryState {
  std::uint64_t limit_bytes = 0;
  BytesByUse bytes_by_use{};
  std::uint64_t largest_free_bytes = 0;

  [[nodiscard]] std::uint64_t used_bytes() const;
};

// Where the limit comes from.
struct MemoryLimit {
  std::string owner;               // as "GPU-1234 (NVIDIA ...)"
  bool is_asked = false;           // --gpu-memory; else what was free
  int num_sharers = 1;             // workers that share what was free
  std::uint64_t margin_bytes = 0;  // and what was left of it
};

// One line: the need, the budget by purpose, the largest first; then what to change, in the order of what would help
// most.
[[nodiscard]] std::string spent_text(const MemoryLimit& limit, const MemoryState& state, std::uint64_t wanted_bytes,
                                     MemoryUse wanted);

}  // namespace rp
