// launcher/lost_workers.h
// Keeps the workers that died while the run goes on, from their death to the start of a replacement
// (docs/design/replay.md).
//
// A replacement must not start before the coordinator has ended the epoch of the dead worker: it would take over its
// predecessor's commands. Owned by the Supervisor.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/system/clock.h"
#include "launcher/replacements.h"
#include "launcher/report.h"

namespace rp {

class LostWorkers {
 public:
  LostWorkers(WorkerFailurePolicy policy, int max_restarts) : replacements_(policy, max_restarts) {}

  // Decides whether the run goes on after a worker's death. `num_alive`: the number of workers that live. If it returns
  // true, lose() must follow.
  [[nodiscard]] bool decide(const Replacements::Death& death, int num_alive);
  // Adds the worker. `failure`: of its process. Returns a note for the user.
  [[nodiscard]] std::string lose(int worker, Failure failure);

  // Returns whether a process takes the place of a worker that was lost. REQUIRES: the coordinator has not answered.
  [[nodiscard]] bool is_replaced(int worker) const { return losses_.at(worker).is_replaced; }

  // Notes that the coordinator has taken back the worker's tasks.
  void on_dropped(int worker);
  // Removes and returns a worker whose replacement starts now.
  [[nodiscard]] std::optional<int> take_due();
  [[nodiscard]] Deadline next_start() const;

  // The coordinator has ended. Returns the failure of a worker whose tasks it has not taken back, because it could not
  // go on; forgets everything.
  [[nodiscard]] std::optional<Failure> end();

 private:
  struct Loss {
    bool is_replaced = false;
    Failure failure;
  };

  Replacements replacements_;
  std::map<int, Loss> losses_;      // by worker: those whose tasks the coordinator has not taken back yet
  std::map<int, Deadline> starts_;  // by worker: when its replacement starts
  bool replaces_next_ = false;      // decided by decide()
  int num_left_ = 0;
};

}  // namespace rp
