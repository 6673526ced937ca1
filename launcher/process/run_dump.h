// launcher/process/run_dump.h
// What a person reads when a run is interrupted or stands still: what every process does, what it waits for and since
// when, what to do. Design: docs/design/dumps.md.
//
// Read from the fault board and /proc, so that stopped and dead processes are told of, too. Used by rp-launch, and by a
// Session without it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hoststore/records/fault_board.h"

namespace rp {

// A process at one moment.
struct ProcessSnapshot {
  std::string name;  // "worker 3"
  bool is_worker = false;
  pid_t pid = 0;
  std::optional<int> status = std::nullopt;  // as waitpid() gives it, of a dead one
  char kernel_state = '?';                   // of proc(5): R, S, D, T ...; '?': unknown
  ProcessState state = ProcessState::kNotStarted;
  std::uint64_t heartbeat = 0;
  BoardTask task = {};
  BoardProgress progress = {};
  std::vector<std::pair<std::string, Wait>> waits = {};  // by thread: "inputs"
};

// `status`: of a process that has ended.
[[nodiscard]] ProcessSnapshot snapshot_of(const std::string& name, int board_index, pid_t pid,
                                          std::optional<int> status, FaultBoardEntry entry);

// True if a slot was committed, a layer begun or a piece of a checkpoint written in between.
[[nodiscard]] bool has_progressed(const std::vector<ProcessSnapshot>& before, const std::vector<ProcessSnapshot>& now);

// Lines that each end in a newline. `why`: "interrupted". REQUIRES: the first snapshot is the coordinator's.
[[nodiscard]] std::string dump_text(const std::string& who, const std::string& why,
                                    const std::vector<ProcessSnapshot>& processes, std::int64_t now_ns);

}  // namespace rp
