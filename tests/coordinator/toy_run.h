// tests/coordinator/toy_run.h
// Runs the toy model with a coordinator in the test's thread and with the workers of toy_workers.h.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "coordinator/coordinator.h"
#include "hoststore/records/fault_board.h"
#include "hoststore/records/trace_journal.h"
#include "hoststore/store.h"
#include "tests/coordinator/toy_model.h"

namespace rp::test {

enum class Harness { kOneMapping, kTwoMappings, kProcesses };
inline void PrintTo(Harness harness, std::ostream* out) {
  *out << (harness == Harness::kOneMapping    ? "one mapping"
           : harness == Harness::kTwoMappings ? "two mappings"
                                              : "processes");
}

class Workers;
struct RunSettings;
using AfterRound = std::function<void(Coordinator& coordinator, const Round& round)>;  // called after each is accepted
void serve_on_cpu(Store& store, int worker, const ToyConfig& config, const RunSettings& settings);

// Plans that a worker dies before an operation of its device.
struct Death {
  static constexpr int kAtStart = -1;  // before it has acknowledged an epoch
  int worker = 0;
  int operation = kAtStart;  // counted from 1; 0: never
  int life = 0;              // 0: of the first process or thread; 1: of the next one
  // Before it dies, it writes garbage to a part of what the operation would write to the store. Only operations that
  // write to the store are counted then.
  bool writes_half = false;
  bool stops_before = false;  // it stops there, and dies when the watch over the workers ends it
};

struct RunSettings {
  Harness harness = Harness::kOneMapping;
  int num_workers = 1;
  bool prefetch = true;
  std::string plan{};  // "": chosen by the coordinator, and cut again during the run
  const FaultBoard* board = nullptr;
  bool fits_device = false;  // the workers' devices have memory of their own
  bool check_consistency = false;
  TraceJournal* trace = nullptr;
  // Runs a worker until the run ends: in a thread, or in a process of its own.
  using Serve = std::function<void(Store& store, int worker, const ToyConfig& config, const RunSettings& settings)>;
  Serve serve = serve_on_cpu;
  std::vector<Death> deaths{};
  bool serves_deaths = false;  // `serve` itself lets the worker die, or loses its GPU
  // Called now and then by the process that watches the processes, with their pids and workers; may kill them.
  std::function<void(const std::map<pid_t, int>& workers)> look_after{};
  int max_replacements = 0;  // of all workers together; without one, the run goes on with a worker less
  // If not 0: a worker that is not replaced comes back after this many further commits, or when no worker is left.
  int commits_until_return = 0;
  int life = 0;                // of the worker that is served, for `serve`; set by Workers
  int* num_deaths = nullptr;   // counts the deaths that were reported during the trainings
  int* num_returns = nullptr;  // counts the workers that came back
  // Of a task that is set aside: before the first death, or if no death is planned, from the beginning. run_toy() then
  // throws what `on_set_aside` throws.
  std::optional<SlotNumber> set_aside{};
  std::function<void(Store& store, const Command& task)> on_set_aside{};
  std::function<void(Store& store, const CommittedTask& task)> on_commit{};
};

[[nodiscard]] std::optional<FaultBoardEntry> entry(const FaultBoard* board, int index);

// Returns the death that is planned for this life of a worker. Its operation is 0 if there is none.
[[nodiscard]] Death planned_death(const RunSettings& settings, int worker);

// The parts of a run, for tests that run their coordinators themselves. `settings` and `workers` must outlive the
// coordinator.
[[nodiscard]] StoreSettings toy_store_settings(const RunSettings& settings);
[[nodiscard]] CoordinatorOptions toy_coordinator_options(const ToyConfig& config, const RunSettings& settings,
                                                         Workers& workers, Store& store);
// Writes both working copies if there are two: an asynchronous run begins with the version before, too.
void write_initial_weights(Store& store);
struct ToyStep {
  std::vector<std::shared_ptr<Round>> rounds;
  std::shared_ptr<StepOutcome> outcome;
};
// Accepts the rounds of a step, which are counted from 0, and the step.
ToyStep accept_toy_step(Coordinator& coordinator, const ToyConfig& config, int step,
                        const AfterRound& after_round = {});
// Returns the masters of all groups; 0 for those that are in the store of another node.
[[nodiscard]] std::vector<float> toy_masters(Store& store, const ToyConfig& config, Version version);
// Trains, and waits for everything.
[[nodiscard]] ToyResult train_toy(Store& store, Coordinator& coordinator, const ToyConfig& config,
                                  const AfterRound& after_round = {});

// Returns the results of `trainings` trainings with the same initial weights, one after the other
// in one run.
std::vector<ToyResult> run_toy(const ToyConfig& config, const RunSettings& settings, int trainings = 1);

// Expects the results of the sequential loop from each training.
void expect_reference(const ToyConfig& config, const RunSettings& settings, int trainings = 1);

}  // namespace rp::test
