// pipeline/emulated_backend.h
// Implements the backend of `--device sim:NAME`: workers on emulated devices, a store without data, updates that only
// take time, and at the run's end a comparison with the simulator (docs/design/emulated-device.md).
#pragma once

#include <string>
#include <vector>

#include "coordinator/schedule_report.h"
#include "pipeline/backend.h"
#include "planner/prediction/emulated_machine.h"

namespace rp {

class EmulatedBackend : public Backend {
 public:
  EmulatedBackend(const RuntimeSettings& settings, int num_workers) : settings_(settings), num_workers_(num_workers) {}

  [[nodiscard]] bool has_weights() const override { return false; }
  // Throws rp::Error also if the machine has no times for a model, or if the run is to check data.
  void set_pipelines(std::vector<PipelineCode> pipelines) override;
  void complete_store(StoreSettings& settings) const override;
  void complete_plan(PlanSettings& settings) const override;
  void complete_coordinator(CoordinatorOptions& options) const override;
  void serve(const WorkerSeat& seat) const override;
  // Compares the time of the steps with the time that the simulator computes for the same plan. The text is empty if
  // there are too few steps.
  [[nodiscard]] std::string report(const ScheduleReport& steps, const Store& store,
                                   const StepSettings& settings) const override;

 private:
  [[nodiscard]] std::string comparison(const ScheduleReport::Shape& shape, const Store& store,
                                       const StepSettings& settings, const MeasuredSteps& measured) const;

  const RuntimeSettings& settings_;
  const int num_workers_;
  EmulatedMachine machine_;                  // from here on set by set_pipelines()
  std::vector<LayerWork> times_;             // by layer, over all models
  std::vector<double> expansion_times_;      // the same layers; in ms
  std::vector<std::uint64_t> output_bytes_;  // by layer, over all models
  int num_layers_ = 0;                       // of the first model
};

}  // namespace rp
