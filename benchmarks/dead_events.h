// benchmarks/dead_events.h
// Tries what happens to waits for the events and words of a process that is killed. Part of
// gpu_dead_events.cc, which describes what is tried.
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
  // Memory that the dying process clears repeatedly: half a second of work, on most cards more. A
  // driver accepts about a thousand operations before it lets its caller wait, so about that many
  // are left when the event is recorded.
  std::uint64_t work_bytes = std::uint64_t{1} << 30;
  int work_times = 1500;
  double watch_s = 2;  // how long a wait is watched before it counts as blocked
};

// The findings, by what was tried: "query_before", "wait_queued_before", "query_after",
// "wait_queued_after", "synchronize"; for cases with a word "word" in place of queries and
// synchronize.
using DeadFindings = std::vector<std::pair<std::string, std::string>>;

// Returns the driver's table in a process that was just forked.
using DriverOf = std::function<const CudaDriver&()>;

// Tries one case in two processes of its own, which have ended at the return: one dies, the other
// observes. A finding "observer" reports that the observer hung or failed. REQUIRES: this process
// has not used CUDA. Throws rp::Error (kNoResource) without a GPU.
[[nodiscard]] DeadFindings try_dead_case(const DriverOf& driver, DeadCase which, const DeadSettings& settings);

}  // namespace rp
