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

  // Decides what follows a worker's death. `num_alive`: the number of workers that live.
  [[nodiscard]] Replacements::Decision decide(const Replacements::Death& death, int num_alive) {
    return replacements_.decide(death, num_left(num_alive));
  }
  // Adds a worker without which the run goes on. `failure`: of its process. Returns a note for the user.
  [[nodiscard]] std::string lose(int worker, Replacements::Decision decision, Failure failure, int num_alive);

  // Has a worker that was lost replaced, whatever was decided at its death: at once, or when the coordinator has taken
  // back its tasks.
  void bring_back(int worker);
  // Returns the number of workers that live or will start.
  [[nodiscard]] int num_left(int num_alive) const;
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
};

}  // namespace rp
