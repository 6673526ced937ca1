#include "launcher/progress_watch.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/text.h"
#include "launcher/process/process_stat.h"

namespace rp {

namespace {

constexpr std::int64_t kStandstillNs = 5 * kNsPerSecond;  // without progress after an INT

constexpr std::uint64_t kFewTicks = 10;  // 0.1 s, which any process may need to end

// Returns the processor time of a process, in ticks, without that of the thread that looks for messages of other nodes:
// it never rests.
std::uint64_t ticks_at_work(pid_t pid) {
  const std::uint64_t ticks = process_stat(pid).cpu_ticks;
  const pid_t network = thread_named(pid, "rp-nodes");
  if (network == pid) return ticks;  // there is none
  std::uint64_t of_network = 0;
  for (const ThreadTimes& times : thread_times(pid)) {
    if (times.thread == network)
      of_network = static_cast<std::uint64_t>(times.run_ns * sysconf(_SC_CLK_TCK) / kNsPerSecond);
  }
  return ticks - std::min(ticks, of_network);
}

}  // namespace

std::vector<ProcessSnapshot> ProgressWatch::snapshots() const {
  std::vector<ProcessSnapshot> processes;
  for (const auto& member : members_) {
    processes.push_back(snapshot_of(member->name(), member->board_index(), member->pid(),
                                    member->alive() ? std::nullopt : member->process().status(),
                                    run_.board.entry(member->board_index())));
  }
  return processes;
}

void ProgressWatch::dump(const char* why, bool anew) {
  std::vector<ProcessSnapshot> processes = snapshots();
  if (!dumped_.empty() && !(anew && has_progressed(dumped_, processes))) return;
  run_.say(dump_text("rp-launch", why, processes, now_ns()));
  dumped_ = std::move(processes);
}

void ProgressWatch::start() {
  last_check_ = snapshots();
  (void)still_running();  // discounts the processor time used so far
  next_check_ = Deadline::after_ns(kStandstillNs);
}

// The computation of a layer may take long, and writing a checkpoint begins no layer. So use of a
// processor counts as progress, too.
void ProgressWatch::check() {
  stop();
  const bool is_at_work = !still_running().empty();
  if (is_at_work || has_progressed(last_check_, snapshots())) return start();
  dump("interrupted, but nothing goes on");
}

std::string ProgressWatch::still_running() {
  std::string names;
  for (const auto& member : members_) {
    if (!member->alive()) continue;
    const pid_t pid = member->pid();
    const std::uint64_t ticks = ticks_at_work(pid);
    if (ticks < std::exchange(ticks_[pid], ticks) + kFewTicks) continue;
    names += cat(names.empty() ? "" : ", ", member->name(), " (pid ", pid, ")");
  }
  return names;
}

}  // namespace rp
