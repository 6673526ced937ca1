#include "launcher/process/run_dump.h"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <iomanip>
#include <sstream>

#include "common/system/clock.h"
#include "common/text.h"
#include "launcher/process/process_stat.h"

namespace rp {

namespace {

// A process that wrote to wrong addresses may have left any time, so the result is limited to valid
// values.
std::int64_t ns_since(std::int64_t then, std::int64_t now) { return then < 0 || then > now ? 0 : now - then; }

constexpr int kNameWidth = 13;
constexpr std::int64_t kNotLongNs = kNsPerSecond / 2;  // a run is healthy if its slots progress at least this often

std::string thread_name(bool is_worker, int thread) {
  constexpr std::array kWorker = {"weights", "inputs", "compute", "gradients"};
  constexpr std::array kCoordinator = {"caller", "commit", "updates"};
  const auto index = static_cast<std::size_t>(thread);
  if (is_worker) return index < kWorker.size() ? kWorker[index] : "thread";
  return kCoordinator[std::min(index, kCoordinator.size() - 1)];
}

// True for a dead process, whether or not it has been reaped.
bool has_ended(const ProcessSnapshot& process) { return process.status || process.kernel_state == 'Z'; }

bool was_killed(const ProcessSnapshot& process) {
  return process.status ? WIFSIGNALED(*process.status) : has_ended(process);
}

bool is_stopped(const ProcessSnapshot& process) { return process.kernel_state == 'T' || process.kernel_state == 't'; }

bool computes(const ProcessSnapshot& process) {
  return process.is_worker && process.task.slot >= 0 && wait_of(process, "compute") == nullptr;
}

std::string duration_text(std::int64_t ns) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1) << static_cast<double>(std::max<std::int64_t>(ns, 0)) / 1e9 << " s";
  return out.str();
}

std::string task_text(const BoardTask& task) {
  std::string text = cat("slot ", task.slot, ", ", task.phase_text(), " of layers ", task.first_layer, "-",
                         std::int64_t{task.end_layer} - 1, ", ", round_text(task.round), " of step ", task.step);
  if (task.microbatch >= 0) text += cat(", microbatch ", task.microbatch, " of ", task.num_microbatches);
  if (task.layer >= 0) text += cat(", layer ", task.layer);
  return text;
}

std::string progress_text(const BoardProgress& progress) {
  if (progress.accepted <= 0) return "no round yet";
  std::string text = cat("newest is ", round_text(progress.round), " of step ", progress.step,
                         "; last slot accepted: ", progress.accepted - 1);
  if (progress.dispatched > 0) text += cat(", sent: ", progress.dispatched - 1);
  return text + (progress.committed > 0 ? cat(", committed: ", progress.committed - 1) : ", none committed");
}

void print_line(std::ostringstream& out, const std::string& indented_name, const std::string& text) {
  out << std::left << std::setw(kNameWidth) << indented_name << "  " << text << "\n";
}

void print_process(std::ostringstream& out, const ProcessSnapshot& process, std::int64_t now) {
  const std::string place = place_text(process);
  print_line(out, "  " + process.name,
             cat("pid ", process.pid, ", ", state_text(process), place.empty() ? "" : ": ", place));
  for (const auto& [thread, wait] : process.waits) {
    if (wait.is_idle()) continue;
    const bool ahead = process.is_worker && wait.slot >= 0 && wait.slot != process.task.slot;
    print_line(out, "    " + thread,
               cat(ahead ? cat("for slot ", wait.slot, ": ") : "", "waits ",
                   duration_text(ns_since(wait.since_ns, now)), " for ", wait.text()));
  }
}

std::string other_nodes_advice(const Wait& wait) {
  return cat("this node waits for ", wait.text(), "; look at what those do");
}

// Names the one thing to look at. The checks are in the order of decreasing certainty.
std::string advice(const std::vector<ProcessSnapshot>& processes, std::int64_t now) {
  for (const ProcessSnapshot& process : processes) {
    if (!process.status && is_stopped(process)) {
      return cat(process.name, " is stopped by a signal or a debugger; `kill -CONT ", process.pid, "` lets it go on");
    }
  }
  const ProcessSnapshot& coordinator = processes.front();
  if (ns_since(coordinator.progress.changed_ns, now) < kNotLongNs) {
    return "nothing: no slot is late. After INT a run ends with the step at hand; a second INT leaves it 2 s";
  }
  for (const ProcessSnapshot& process : processes) {
    if (!process.status && process.kernel_state == 'D') {
      return cat(process.name, " is inside the kernel (disk or driver); see /proc/", process.pid, "/stack");
    }
  }
  const Wait* commit = wait_of(coordinator, "commit");
  if (commit != nullptr && commit->kind == WaitKind::kCompletion) {
    const auto worker = static_cast<std::size_t>(commit->numbers[0]) + 1;
    if (worker < processes.size()) {
      const ProcessSnapshot& last = processes[worker];
      if (was_killed(last))
        return cat("slot ", commit->slot, " of ", last.name, ", which has ended, is what all others wait for");
      if (waits_for_updates(last, commit->slot)) {
        if (const Wait* wait = wait_for_other_nodes(coordinator)) return other_nodes_advice(*wait);
        return cat(last.name, " waits for the coordinator's updates; `gdb -p ", coordinator.pid,
                   "` shows where they are");
      }
      const Wait* const gradients = wait_of(last, "gradients");
      if (gradients != nullptr && gradients->is_for_other_nodes() && gradients->slot == commit->slot)
        return other_nodes_advice(*gradients);
      return cat("slot ", commit->slot, " of ", last.name,
                 " is the oldest that is not committed: all others wait for it ", "in the end; `gdb -p ", last.pid,
                 "` shows where it is");
    }
  }
  if (coordinator.state < ProcessState::kAttached) {
    return cat("the program is not through session.start(); `gdb -p ", coordinator.pid, "` shows where it is");
  }
  if (const Wait* wait = wait_for_other_nodes(coordinator)) return other_nodes_advice(*wait);
  if (coordinator.progress.committed == coordinator.progress.accepted && wait_of(coordinator, "caller") == nullptr) {
    return cat("the workers have nothing to do, and the program waits for nothing of theirs; `gdb -p ", coordinator.pid,
               "` shows where it is");
  }
  return cat("`gdb -p ", coordinator.pid, "` shows where the coordinator is");
}

}  // namespace

const Wait* wait_for_other_nodes(const ProcessSnapshot& coordinator) {
  const auto found =
      std::ranges::find_if(coordinator.waits, [](const auto& wait) { return wait.second.is_for_other_nodes(); });
  return found == coordinator.waits.end() ? nullptr : &found->second;
}

std::string node_wait_text(const FaultBoard& board) {
  for (int process = 0; process < board.num_entries(); ++process) {
    for (int thread = 0; thread < kMaxBoardWaits; ++thread) {
      const std::optional<Wait> wait = board.entry(process).waits(thread).observe();
      if (wait && wait->is_for_other_nodes()) return wait->text();
    }
  }
  return "";
}

std::string state_text(const ProcessSnapshot& process) {
  if (process.status) {
    return WIFSIGNALED(*process.status) ? cat("killed by signal ", WTERMSIG(*process.status))
                                        : cat("ended with code ", WEXITSTATUS(*process.status));
  }
  if (process.pid == 0) return "not started";
  if (has_ended(process)) return "ended";
  if (is_stopped(process)) return "STOPPED";
  if (process.kernel_state == 'D') return "in the kernel";
  if (process.state < ProcessState::kAttached) return "starting";
  if (!process.is_worker) return "running";
  if (process.task.slot < 0) return "idle";
  return computes(process) ? "computes" : "waits";
}

std::string place_text(const ProcessSnapshot& process) {
  if (process.state < ProcessState::kAttached)
    return process.state == ProcessState::kStarting ? "not through session.start()" : "";
  if (!process.is_worker) return progress_text(process.progress);
  return process.task.slot < 0 ? "" : task_text(process.task);
}

const Wait* wait_of(const ProcessSnapshot& process, const std::string& thread) {
  const auto found = std::find_if(process.waits.begin(), process.waits.end(),
                                  [&thread](const auto& entry) { return entry.first == thread; });
  return found == process.waits.end() ? nullptr : &found->second;
}

bool waits_for_updates(const ProcessSnapshot& worker, std::int64_t slot) {
  return std::any_of(worker.waits.begin(), worker.waits.end(), [slot](const auto& entry) {
    const Wait& wait = entry.second;
    return wait.slot == slot && (wait.kind == WaitKind::kWeights || wait.kind == WaitKind::kGradientReleased);
  });
}

ProcessSnapshot snapshot_of(const std::string& name, int board_index, pid_t pid, std::optional<int> status,
                            FaultBoardEntry entry) {
  ProcessSnapshot snapshot{.name = name, .is_worker = board_index > 0, .pid = pid, .status = status};
  if (!status) snapshot.kernel_state = process_stat(pid).state;
  snapshot.state = entry.state();
  if (const std::optional<Fault> fault = entry.fault())
    snapshot.has_crashed = fault->kind == FaultKind::kSignal || fault->kind == FaultKind::kAssertion;
  snapshot.num_advances = entry.num_advances();
  snapshot.task = entry.task();
  snapshot.progress = entry.progress();
  for (int thread = 0; thread < kMaxBoardWaits; ++thread) {
    const auto wait = entry.waits(thread).observe();
    if (wait) snapshot.waits.emplace_back(thread_name(snapshot.is_worker, thread), *wait);
  }
  return snapshot;
}

bool has_progressed(const std::vector<ProcessSnapshot>& before, const std::vector<ProcessSnapshot>& now) {
  if (before.size() != now.size()) return true;
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (before[i].pid != now[i].pid || before[i].num_advances != now[i].num_advances ||
        before[i].progress.committed != now[i].progress.committed)
      return true;
  }
  return false;
}

std::string processes_text(const std::vector<ProcessSnapshot>& processes, std::int64_t now_ns) {
  std::ostringstream out;
  for (const ProcessSnapshot& process : processes) print_process(out, process, now_ns);
  print_line(out, "  to do:", advice(processes, now_ns));
  return out.str();
}

std::string dump_text(const std::string& who, const std::string& why, const std::vector<ProcessSnapshot>& processes,
                      std::int64_t now_ns) {
  return cat(who, ": ", why, "; what the processes do now:\n", processes_text(processes, now_ns));
}

}  // namespace rp
