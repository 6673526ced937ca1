#include "launcher/process/processor_wait.h"

#include <algorithm>
#include <utility>

namespace rp {

std::int64_t ProcessorWait::waited_ns(const std::vector<ThreadTimes>& threads, std::int64_t slice_ns) {
  std::int64_t longest_ns = 0;
  std::map<pid_t, Thread> now;
  for (const ThreadTimes& times : threads) {
    Thread& thread = now[times.thread];
    thread.last = times;
    const auto known = threads_.find(times.thread);
    if (known == threads_.end()) continue;
    const Thread& before = known->second;
    const bool still_waits = times.state == 'R' && before.last.state == 'R' && times.run_ns == before.last.run_ns &&
                             times.delay_ns == before.last.delay_ns;
    if (still_waits) thread.counted_ns = before.counted_ns + slice_ns;
    const std::int64_t ended_ns = times.delay_ns - before.last.delay_ns - before.counted_ns;
    const bool waits = still_waits || times.state == 'D';
    longest_ns = std::max(longest_ns, waits ? slice_ns : std::min(ended_ns, slice_ns));
  }
  threads_ = std::move(now);
  return longest_ns;
}

}  // namespace rp
