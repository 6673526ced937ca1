// launcher/replacements.h
// Decides what follows the unexpected end of a worker: another process in its place, a worker less, or the end of the
// run (docs/design/replay.md).
#pragma once

#include <cstdint>
#include <map>

#include "common/system/clock.h"
#include "launcher/options/worker_failure_policy.h"

namespace rp {

// True if the process has reported an error that another would meet as well: neither did a signal end it, nor did its
// GPU fail or not end its work. `status`: in the format of waitpid().
[[nodiscard]] bool has_reported_error(int status);

// Decides whether the program is started again after the death of its coordinator (docs/design/restart.md).
class ProgramRestarts {
 public:
  explicit ProgramRestarts(int max_restarts) : restarts_left_(max_restarts) {}

  // `has_progressed`: the process that died had committed a task. Returns false if no restart is left, or if
  // kMaxFruitless processes in a row have not progressed.
  [[nodiscard]] bool decide(bool has_progressed);
  // Returns how long to wait before the start, in ns: longer each time without progress.
  [[nodiscard]] std::int64_t delay_ns() const;

  static constexpr int kMaxFruitless = 3;

 private:
  int restarts_left_;
  int num_fruitless_ = 0;
};

class Replacements {
 public:
  Replacements(WorkerFailurePolicy policy, int max_restarts) : policy_(policy), restarts_left_(max_restarts) {}

  enum class Decision : std::uint8_t {
    kReplace,
    kShrink,
    kSetAside,  // the task that the worker ran is not computed again; another process takes the worker's place
    kEndRun,
  };
  struct Death {
    int worker = 0;
    int status = 0;          // in the format of waitpid()
    std::int64_t slot = -1;  // of the task that it ran; -1: none
    bool has_served = true;  // it has begun to compute
    bool replaces = false;   // it took the place of another process
    bool out_of_memory = false;
    bool hung = false;  // rp-launch has ended it because of its task
  };
  // `num_left`: the number of workers that live or will start. A worker that ended with a code of its own has reported
  // what is wrong; another would fail in the same way (unless its GPU failed later than at the start), but the run goes
  // on without a replacement that could not start, for example because files of the model have changed. Another would
  // also fail if a task has ended kMaxDeathsPerTask workers: that task is set aside. A SIGKILL is not the task's doing,
  // unless the kernel sent it for lack of memory.
  [[nodiscard]] Decision decide(const Death& death, int num_left);

  // Forgets the deaths so far: the tasks of a program that is started again are numbered from 0.
  void forget_deaths() { deaths_.clear(); }

  // Returns how long to wait before the worker is started again, in ns: not at all if its last process has served,
  // otherwise longer each time.
  [[nodiscard]] std::int64_t delay_ns(int worker) const;

  static constexpr int kMaxDeathsPerTask = 3;

 private:
  const WorkerFailurePolicy policy_;
  int restarts_left_;
  std::map<std::int64_t, int> deaths_;  // by slot
  std::map<int, int> failed_starts_;    // by worker: since a process of it has served
};

}  // namespace rp
