// pipeline/emulated_run.h
// Serves the workers of a run on `--device sim:NAME`, and compares the run with the simulator at
// its end (docs/design/emulated-device.md).
//
// Made in every process by the Runtime, once all pipelines are described.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coordinator/schedule_report.h"
#include "planner/prediction/emulated_machine.h"
#include "roundpipe/model.h"
#include "worker/executor/emulated_stage_executor.h"

namespace rp {

class EmulatedRun {
 public:
  // `device` includes "sim:". Throws rp::Error if there is no such machine, or if it has no times
  // for a model.
  EmulatedRun(const std::string& device, const std::vector<const Model*>& models, int num_workers);
  [[nodiscard]] static bool is_for(const std::string& device) { return device.starts_with("sim:"); }

  [[nodiscard]] const EmulatedMachine& machine() const { return machine_; }

  // Serves as this worker until the run ends.
  void serve(Store& store, int worker, std::optional<FaultBoardEntry> board, TraceJournal* trace) const;

  // Used by the coordinator, for CoordinatorOptions.
  [[nodiscard]] HostMemoryModel host_memory() const { return {.bytes_per_ns = machine_.optimizer_gbs}; }

  // Returns a text that compares the time of these steps of the first pipeline with the time that
  // the simulator computes for the same plan. The text is empty if there are too few steps.
  // REQUIRES: nothing in flight.
  [[nodiscard]] std::string report(const ScheduleReport& steps, const Store& store, bool asynchronous) const;

 private:
  [[nodiscard]] std::string comparison(const ScheduleReport::Shape& shape, const Store& store, bool asynchronous,
                                       const MeasuredSteps& measured) const;

  EmulatedMachine machine_;
  int num_workers_;
  std::vector<LayerWork> times_;             // by layer, over all models
  std::vector<std::uint64_t> output_bytes_;  // by layer, over all models
  int num_layers_ = 0;                       // of the first model
};

}  // namespace rp
