// cuda/out_of_memory_report.h
// Composes the message for a worker whose device memory is used up: what was wanted, what occupies
// the memory, what to change.
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

// The origin of the memory limit.
struct MemoryLimit {
  std::string owner;               // such as "GPU-1234 (NVIDIA ...)"
  bool is_asked = false;           // by --gpu-memory; false: it is the free memory
  int num_sharers = 1;             // workers that share the free memory
  std::uint64_t margin_bytes = 0;  // of the free memory that is left to others
};

// Returns one line: the need, the use of memory by purpose, largest first, and what to change, most
// effective change first.
[[nodiscard]] std::string spent_text(const MemoryLimit& limit, const MemoryState& state, std::uint64_t wanted_bytes,
                                     MemoryUse wanted);

}  // namespace rp
