// pipeline/backend.h
// Provides everything in a run that depends on the kind of its workers' device: the CPU, NVIDIA GPUs through a plug-in,
// or emulated GPUs. make_backend() chooses the kind; no other code of this library looks for it
// (docs/design/backends.md).
//
// Made in every process by the Session and owned by the Runtime. Workers call load() and serve(), the coordinator the
// rest.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hoststore/records/fault_board.h"
#include "launcher/process/process_role.h"
#include "pipeline/torch_worker/stage_layers.h"
#include "roundpipe/pipeline.h"

namespace rp {

class ScheduleReport;
class Store;
class TraceJournal;
struct CoordinatorOptions;
struct PlanSettings;
struct StepSettings;
struct StoreSettings;

// What follows after a worker's end. If the process continues, the worker's device frees
// everything. The end of the process does the same much faster.
enum class ServeEnd { kProcessGoesOn, kEndOfProcess };

// What a worker needs in order to serve a run.
struct WorkerSeat {
  Store& store;
  int worker = 0;
  std::optional<FaultBoardEntry> board;
  TraceJournal* trace = nullptr;
  bool has_own_process = true;  // false: the process is the coordinator, too
  ServeEnd end = ServeEnd::kProcessGoesOn;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // Returns false if there are no weights that anyone could read or write.
  [[nodiscard]] virtual bool has_weights() const { return true; }
  // Returns the grain of recomputes that is faster on this device.
  [[nodiscard]] virtual RecomputeGrain recompute_grain() const { return RecomputeGrain::kStage; }
  // Returns the memory of each GPU that a plan has to fit; 0 if it is not known or if there is no GPU.
  [[nodiscard]] virtual std::uint64_t gpu_bytes() const { return 0; }

  // Loads the device's code. Called before the process first calls LibTorch in a way that asks for a GPU.
  virtual void load() {}

  // Called once in every process, when all pipelines are described, before the functions below. What the pointers
  // point to must outlive the run. Throws rp::Error if there is no such device or if it cannot run these models.
  virtual void set_pipelines(std::vector<PipelineCode> pipelines) = 0;

  // These fill in the settings that depend on the device.
  virtual void complete_store(StoreSettings&) const {}
  virtual void complete_plan(PlanSettings& settings) const = 0;
  virtual void complete_coordinator(CoordinatorOptions& options) const = 0;

  // Serves as a worker until the run ends.
  virtual void serve(const WorkerSeat& seat) const = 0;

  // Returns what to print at the end of a successful run, in which the first pipeline ran these steps; may be empty.
  // REQUIRES: nothing in flight.
  [[nodiscard]] virtual std::string report(const ScheduleReport&, const Store&, const StepSettings&) const {
    return {};
  }
};

// Returns the backend for the device of the settings, which must outlive it.
[[nodiscard]] std::unique_ptr<Backend> make_backend(const RuntimeSettings& settings, const AssignedGpu& gpu,
                                                    int num_workers);

}  // namespace rp
