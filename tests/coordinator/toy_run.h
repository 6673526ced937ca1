// tests/coordinator/toy_run.h
// Runs of the toy model: a coordinator in the test's thread, and workers as threads over one mapping of the store, over
// one each, or as processes.
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
  std::string plan;  // "" = by the coordinator, and cut anew on the way
  const FaultBoard* board = nullptr;
  bool fits_device = false;  // the workers' devices have memory of their own
  bool check_consistency = false;
  TraceJournal* trace = nullptr;
  // A worker's life: in a thread, or in a process of its own.
  using Serve = std::function<void(Store& store, int worker, const ToyConfig& config, const RunSettings& settings)>;
  Serve serve = serve_on_cpu;
};

[[nodiscard]] std::optional<FaultBoardEntry> entry(const FaultBoard* board, int index);

// The workers of a run, ended by the coordinator's end.
class Workers {
 public:
  // Forks, where they are processes: before any thread is started. The store must outlive it.
  Workers(Store& store, const RunSettings& settings, const ToyConfig& config);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

 private:
  std::vector<std::unique_ptr<Store>> views_;
  std::vector<std::thread> threads_;
  std::vector<pid_t> children_;
};

// The results of `trainings` from the same weights, one after the other in one run.
std::vector<ToyResult> run_toy(const ToyConfig& config, const RunSettings& settings, int trainings = 1);

// That they are the sequential loop's.
void expect_reference(const ToyConfig& config, const RunSettings& settings, int trainings = 1);

}  // namespace rp::test
