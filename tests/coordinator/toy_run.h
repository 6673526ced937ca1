// tests/coordinator/toy_run.h
// Runs the toy model with a coordinator in the test's thread and with workers that are threads over
// the test's mapping of the store, threads with one mapping each, or processes.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
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

struct RunSettings;
void serve_on_cpu(Store& store, int worker, const ToyConfig& config, const RunSettings& settings);

struct RunSettings {
  Harness harness = Harness::kOneMapping;
  int num_workers = 1;
  bool prefetch = true;
  std::string plan;  // "": chosen by the coordinator, and cut again during the run
  const FaultBoard* board = nullptr;
  bool fits_device = false;  // the workers' devices have memory of their own
  bool check_consistency = false;
  TraceJournal* trace = nullptr;
  // Runs a worker until the run ends: in a thread, or in a process of its own.
  using Serve = std::function<void(Store& store, int worker, const ToyConfig& config, const RunSettings& settings)>;
  Serve serve = serve_on_cpu;
};

[[nodiscard]] std::optional<FaultBoardEntry> entry(const FaultBoard* board, int index);

// The workers of a run. They end when the coordinator ends them.
class Workers {
 public:
  // Forks if the workers are processes, so it must be called before any thread is started. The
  // store must outlive it.
  Workers(Store& store, const RunSettings& settings, const ToyConfig& config);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

 private:
  std::vector<std::unique_ptr<Store>> views_;
  std::vector<std::thread> threads_;
  std::vector<pid_t> children_;
};

// Returns the results of `trainings` trainings with the same initial weights, one after the other
// in one run.
std::vector<ToyResult> run_toy(const ToyConfig& config, const RunSettings& settings, int trainings = 1);

// Expects the results of the sequential loop from each training.
void expect_reference(const ToyConfig& config, const RunSettings& settings, int trainings = 1);

}  // namespace rp::test
