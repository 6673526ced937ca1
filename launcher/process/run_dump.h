// launcher/process/run_dump.h
// Formats the dump that is printed when a run is interrupted or makes no progress: what every
// process does, what it waits for and since when, and what to do. Design: docs/design/dumps.md.
//
// Reads the fault board and /proc, so that stopped and dead processes are included. Used by
// rp-launch, and by a Session without rp-launch.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hoststore/records/fault_board.h"

namespace rp {

// The state of a process at one moment.
struct ProcessSnapshot {
  std::string name;  // "worker 3"
  bool is_worker = false;
  pid_t pid = 0;
  std::optional<int> status = std::nullopt;  // of a dead process, in the format of waitpid()
  char kernel_state = '?';                   // as in proc(5): R, S, D, T ...; '?': unknown
  ProcessState state = ProcessState::kNotStarted;
  bool has_crashed = false;  // it has recorded a fatal signal or a broken invariant
  std::uint64_t num_advances = 0;
  BoardTask task = {};
  BoardProgress progress = {};
  std::vector<std::pair<std::string, Wait>> waits = {};  // of each thread that waits, with the thread's name: "inputs"

  // True for a process that a signal has stopped, as SIGSTOP does; not for one that a debugger has stopped.
  [[nodiscard]] bool is_stopped_by_signal() const { return !status && kernel_state == 'T'; }
};

// Returns what a thread of the process waits for, or nullptr if it does not wait.
[[nodiscard]] const Wait* wait_of(const ProcessSnapshot& process, const std::string& thread);

// Returns a wait of the coordinator that only other nodes end; nullptr if it has none.
[[nodiscard]] const Wait* wait_for_other_nodes(const ProcessSnapshot& coordinator);

// Returns what a process of this node waits for that only other nodes can provide, the program's own thread first; ""
// if none does.
[[nodiscard]] std::string node_wait_text(const FaultBoard& board);

// True if the worker's slot waits for something that only updates can provide. A slot whose
// predecessors are all committed can wait for nothing else.
[[nodiscard]] bool waits_for_updates(const ProcessSnapshot& worker, std::int64_t slot);

// Takes a snapshot of a process. `status` is set if the process has ended.
[[nodiscard]] ProcessSnapshot snapshot_of(const std::string& name, int board_index, pid_t pid,
                                          std::optional<int> status, FaultBoardEntry entry);

// Describes the state of the process, according to the kernel and to its own record: "computes", "STOPPED".
[[nodiscard]] std::string state_text(const ProcessSnapshot& process);
// Says where the process is: a worker in its task, the coordinator among the slots; "" if it is nowhere.
[[nodiscard]] std::string place_text(const ProcessSnapshot& process);

// Returns true if, between the two snapshots, a slot was committed, a layer was begun, weights were updated, or a piece
// of a checkpoint was written; or if a process was replaced.
[[nodiscard]] bool has_progressed(const std::vector<ProcessSnapshot>& before, const std::vector<ProcessSnapshot>& now);

// Returns a line for each process and for each of its threads that waits, then what to do. REQUIRES: as for
// dump_text().
[[nodiscard]] std::string processes_text(const std::vector<ProcessSnapshot>& processes, std::int64_t now_ns);

// Returns lines that each end in a newline. `who` and `why` begin the first line: "rp-launch",
// "interrupted". REQUIRES: the first snapshot is the coordinator's.
[[nodiscard]] std::string dump_text(const std::string& who, const std::string& why,
                                    const std::vector<ProcessSnapshot>& processes, std::int64_t now_ns);

}  // namespace rp
