#include "launcher/hang_watch.h"

#include <algorithm>
#include <utility>

#include "common/text.h"

namespace rp {

namespace {

std::string seconds_text(std::int64_t ns) {
  return cat(ns / kNsPerSecond, ".", ns % kNsPerSecond / (kNsPerSecond / 10), " s");
}

// Returns when a thread has last begun to wait for another node; 0: none waits for one. Each message that a thread has
// waited for makes it begin again.
std::int64_t newest_node_wait_ns(const std::vector<ProcessSnapshot>& processes) {
  std::int64_t newest_ns = 0;
  for (const ProcessSnapshot& process : processes) {
    for (const auto& [thread, wait] : process.waits) {
      if (wait.is_for_other_nodes()) newest_ns = std::max(newest_ns, wait.since_ns);
    }
  }
  return newest_ns;
}

}  // namespace

void HangWatch::set_wait_timeout(int seconds, bool may_adapt) {
  wait_ns_ = (seconds == 0 ? kDefaultWaitTimeoutSeconds : seconds) * kNsPerSecond;
  adapts_ = may_adapt && seconds == 0;
  may_replace_ = may_adapt;
}

std::optional<Hang> HangWatch::check(const std::vector<ProcessSnapshot>& processes, std::int64_t now_ns,
                                     std::string& notes) {
  if (is_off_) {
    node_wait_ns_ = 0;
    next_check_ = Deadline::never();
    return std::nullopt;
  }
  // After a pause of rp-launch, its processes may have paused as well.
  const std::int64_t slice_ns = checked_ns_ == 0 ? 0 : std::min(now_ns - checked_ns_, 2 * kIntervalNs);
  checked_ns_ = now_ns;
  next_check_ = Deadline::after_ns(kIntervalNs);
  processes_.resize(processes.size());
  for (std::size_t i = 0; i < processes.size(); ++i) {
    if (processes_[i].pid != processes[i].pid) processes_[i] = {.pid = processes[i].pid};
  }
  std::optional<Hang> hang = check_stopped(processes, slice_ns, notes);
  if (!hang) hang = check_starting(processes, slice_ns);
  if (!hang) hang = check_progress(processes, slice_ns);
  if (hang) processes_[hang->process] = {.pid = processes[hang->process].pid, .is_stop_reported = true};
  return hang;
}

std::optional<Hang> HangWatch::check_stopped(const std::vector<ProcessSnapshot>& processes, std::int64_t slice_ns,
                                             std::string& notes) {
  for (std::size_t i = 0; i < processes.size(); ++i) {
    const ProcessSnapshot& snapshot = processes[i];
    Process& process = processes_[i];
    if (!snapshot.is_stopped_by_signal()) {
      process.stopped_ns.reset();
      process.is_stop_reported = false;
      continue;
    }
    process.stopped_ns = process.stopped_ns ? *process.stopped_ns + slice_ns : 0;
    if (!process.is_stop_reported) next_check_ = Deadline::after_ns(kStoppedNoteNs);
    if (*process.stopped_ns < kStoppedNoteNs) continue;
    const std::int64_t limit_ns = std::min(kStoppedNs, wait_ns_);
    const bool is_replaced = snapshot.is_worker && may_replace_;
    if (!std::exchange(process.is_stop_reported, true)) {
      notes += cat("rp-launch: ", snapshot.name, " (pid ", snapshot.pid, ") is stopped by a signal; `kill -CONT ",
                   snapshot.pid, "` lets it go on",
                   is_replaced ? cat("; after ", seconds_text(limit_ns), " the run goes on without it") : "", "\n");
    }
    if (is_replaced && *process.stopped_ns >= limit_ns)
      return Hang{.process = i, .what = cat("was stopped by a signal for ", seconds_text(*process.stopped_ns))};
  }
  return std::nullopt;
}

std::optional<Hang> HangWatch::check_starting(const std::vector<ProcessSnapshot>& processes, std::int64_t slice_ns) {
  for (std::size_t i = 1; i < processes.size(); ++i) {
    const bool is_starting = !processes[i].status && processes[i].state < ProcessState::kIdle;
    processes_[i].starting_ns = is_starting ? processes_[i].starting_ns + slice_ns : 0;
    if (processes_[i].starting_ns < start_ns_ || is_looked_into(processes[i])) continue;
    return Hang{.process = i,
                .what = cat("did not start within ", start_ns_ / kNsPerSecond,
                            " s (--attach-timeout; a longer time is for programs that do much before start())"),
                .thread = processes[i].pid};
  }
  return std::nullopt;
}

std::optional<HangWatch::Culprit> HangWatch::culprit_of(const std::vector<ProcessSnapshot>& processes) {
  const ProcessSnapshot& coordinator = processes.front();
  const Wait* commit = wait_of(coordinator, "commit");
  const Wait* caller = wait_of(coordinator, "caller");
  const Culprit other_node{.is_other_node = true};
  const bool waits_for_other_nodes = wait_for_other_nodes(coordinator) != nullptr;
  const bool waits_for_worker =
      commit != nullptr && (commit->kind == WaitKind::kCompletion || commit->kind == WaitKind::kWorkerStart);
  if (!waits_for_worker) {
    if (caller == nullptr) return std::nullopt;
    if (waits_for_other_nodes) return other_node;
    if (caller->kind == WaitKind::kWorkerStart) return std::nullopt;  // see check_starting()
    return Culprit{.process = 0, .thread = "rp-updates"};
  }
  const auto place = static_cast<std::size_t>(commit->numbers[0]) + 1;
  if (place >= processes.size() || processes[place].status) return Culprit{.process = 0, .thread = "rp-watch"};
  const ProcessSnapshot& worker = processes[place];
  if (worker.state < ProcessState::kIdle) return std::nullopt;  // it starts
  // What it waited for may have come since it was stopped.
  if (worker.is_stopped_by_signal()) return Culprit{.process = place, .thread = "rp-compute", .slot = commit->slot};
  if (waits_for_updates(worker, commit->slot)) {
    return waits_for_other_nodes ? other_node : Culprit{.process = 0, .thread = "rp-updates"};
  }
  const Wait* const gradients = wait_of(worker, "gradients");
  if (gradients != nullptr && gradients->is_for_other_nodes() && gradients->slot == commit->slot) return other_node;
  Culprit culprit{.process = place, .thread = "rp-compute", .slot = commit->slot};
  if (wait_of(worker, "compute") == nullptr) return culprit;
  for (const char* name : {"inputs", "weights", "gradients"}) {
    if (wait_of(worker, name) == nullptr) culprit.thread = cat("rp-", name);
  }
  return culprit;
}

bool HangWatch::is_looked_into(const ProcessSnapshot& process) const {
  return (expects_debuggers_ && process.has_crashed) || kernel_.tracer_of(process.pid) != 0;
}

bool HangWatch::is_held(const std::vector<ProcessSnapshot>& processes) const {
  return processes.front().is_stopped_by_signal() || std::ranges::any_of(processes, [this](const auto& process) {
           return !process.status && is_looked_into(process);
         });
}

std::int64_t HangWatch::adapted_limit_ns(const ProcessSnapshot& coordinator, const Culprit& culprit) const {
  constexpr std::int64_t kFirstSlots = 10;
  std::int64_t limit_ns = coordinator.progress.committed < kFirstSlots ? kFirstMinNs : kMinNs;
  limit_ns = std::max(limit_ns, kMinFactor * longest_ns_);
  // The same task again: perhaps it is only slow.
  const auto hangs = hangs_.find(culprit.slot);
  if (hangs != hangs_.end()) limit_ns <<= 2 * std::min(hangs->second, 8);
  return std::min(limit_ns, wait_ns_);
}

void HangWatch::forget_silence() {
  silent_ns_ = 0;
  at_work_ns_ = 0;
  suspect_wait_ = {};
}

std::optional<Hang> HangWatch::check_progress(const std::vector<ProcessSnapshot>& processes, std::int64_t slice_ns) {
  const bool has_gone_on = last_.empty() || has_progressed(last_, processes);
  const bool waits_on = newest_node_wait_ns(last_) == newest_node_wait_ns(processes);
  last_ = processes;
  if (has_gone_on) longest_ns_ = std::max(longest_ns_, silent_ns_);
  const std::optional<Culprit> culprit = has_gone_on || is_held(processes) ? std::nullopt : culprit_of(processes);
  const bool waits_for_nodes = culprit && culprit->is_other_node;
  const bool has_stopped = std::ranges::any_of(processes, &ProcessSnapshot::is_stopped_by_signal);
  node_wait_ns_ = waits_for_nodes && waits_on && !has_stopped ? node_wait_ns_ + slice_ns : 0;
  if (!culprit || waits_for_nodes) {
    forget_silence();
    return std::nullopt;
  }
  const ProcessSnapshot& suspect = processes[culprit->process];
  silent_ns_ += slice_ns;
  at_work_ns_ += slice_ns - suspect_wait_.waited_ns(kernel_.thread_times(suspect.pid), slice_ns);
  const bool may_be_late = adapts_ && suspect.is_worker;
  const bool is_late = may_be_late && at_work_ns_ >= adapted_limit_ns(processes.front(), *culprit);
  if (silent_ns_ < wait_ns_ && !is_late) return std::nullopt;
  Hang hang{.process = culprit->process,
            .what = cat(suspect.is_stopped_by_signal() ? "is stopped by a signal" : "hangs", ": for ",
                        seconds_text(silent_ns_), " nothing was computed or updated",
                        longest_ns_ > 0 ? cat(", before that for at most ", seconds_text(longest_ns_)) : "")};
  if (!suspect.is_stopped_by_signal()) hang.thread = kernel_.thread_named(suspect.pid, culprit->thread);
  if (culprit->slot >= 0) ++hangs_[culprit->slot];
  forget_silence();
  return hang;
}

}  // namespace rp
