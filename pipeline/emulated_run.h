// pipeline/emulated_run.h
// A run on `--device sim:NAME`: what its workers serve with, and what is said of it in the end
// (docs/design/emulated-device.md).
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
  // `device`: with "sim:". Throws rp::Error for a machine that is none, and for a model that it knows no times of.
  EmulatedRun(const std::string& device, const std::vector<const Model*>& models, int num_workers);
  [[nodiscard]] static bool is_for(const std::string& device) { return device.starts_with("sim:"); }

  [[nodiscard]] const EmulatedMachine& machine() const { return machine_; }

  // Serves until the run ends.
  void serve(Store& store, int worker, std::optional<FaultBoardEntry> board, TraceJournal* trace) const;

  // The coordinator's: for CoordinatorOptions.
  [[nodiscard]] HostMemoryModel host_memory() const { return {.bytes_per_ns = machine_.optimizer_gbs}; }

  // What these steps of the first pipeline took, beside what the simulator says of the same plan; empty for too few
  // steps. REQUIRES: nothing in flight.
  [[nodiscard]] std::string report(const ScheduleReport& steps, const Store& store, bool asynchronous) const;

 private:
  [[nodiscard]] std::string comparison(const ScheduleReport::Shape& shape, const Store& store, bool asynchronous,
                                       const MeasuredSteps& measured) const;

  EmulatedMachine machine_;
  int num_workers_;
  std::vector<LayerWork> times_;             // of all layers of all models
  std::vector<std::uint64_t> output_bytes_;  // likewise
  int num_layers_ = 0;                       // of the first model
};

}  // namespace rp
