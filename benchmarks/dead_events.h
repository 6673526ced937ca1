// benchmarks/dead_events.h
// What waits on the events and words of a process do that is killed. Of gpu_dead_events.cc, which says what is tried.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/driver.h"

namespace rp {

enum class DeadCase {
  kNeverRecorded,
  kBeforeCompletion,
  kAfterCompletion,
  kWordBeforeCompletion,
  kWordAfterCompletion
};
inline constexpr DeadCase kDeadCases[] = {DeadCase::kNeverRecorded, DeadCase::kBeforeCompletion,
                                          DeadCase::kAfterCompletion, DeadCase::kWordBeforeCompletion,
                                          DeadCase::kWordAfterCompletion};
[[nodiscard]] const char* dead_case_name(DeadCase which);

struct DeadSettings {
  // Cleared again and again by the process that dies: half a second of work, on most cards more. A driver takes about a
  // thousand operations before it lets its caller wait, so that much is left when the event is recorded.
  std::uint64_t work_bytes = std::uint64_t{1} << 30;
  int work_times = 1500;
  double watch_s = 4;  // how long a wait is watched before it counts as blocked
};

// What was seen, by what was tried: "query_before", "wait_queued_before", "query_after", "wait_queued_after",
// "synchronize"; "word" of the cases about one.
using DeadFindings = std::vector<std::pair<std::string, std::string>>;

// Gives the driver's table to a process that was just forked.
using DriverOf = std::function<const CudaDriver&()>;

// Tries one in two processes of its own, which are gone at the return: one dies, the other looks on. A finding
// "observer" says that the one that looked on hung or failed. REQUIRES: this process has not used CUDA. Throws
// rp::Error (kNoResource) without a GPU.
[[nodiscard]] DeadFindings try_dead_case(const DriverOf& driver, DeadCase which, const DeadSettings& settings);

}  // namespace rp
