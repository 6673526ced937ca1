// planner/prediction/emulated_machine.h
// EmulatedMachine: what `--device sim:NAME` stands for, namely how long layers, copies and updates
// take, and how much memory there is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/gpu_profile.h"
#include "scheduler/layer_cost.h"
#include "scheduler/workload.h"

namespace rp {

// What stands before the machine's name in --device.
inline constexpr std::string_view kEmulatedDevice = "sim:";

struct EmulatedMachine {
  std::string name;  // such as "sim:rtx4090"
  // The source of layer times: computed from their costs on this GPU, or given by a workload file
  // (time_scale is already applied). One of the two is set.
  std::optional<GpuProfile> gpu;
  std::optional<Workload> workload;
  // 10^9 bytes per second; 0: infinitely fast.
  double upload_gbs = 0;
  double download_gbs = 0;
  double optimizer_gbs = 0;
  double hop_ms = 0;               // of an activation between two GPUs, in addition to its copies
  double copy_latency_ms = 0;      // of each copy
  std::uint64_t memory_bytes = 0;  // of a GPU; 0: unlimited
  std::uint64_t host_memory_bytes = 0;

  // Returns the times by layer, for one microbatch on a GPU of slowness 1. `costs` has one element
  // for each layer of the model; null: the cost of the layer is not known. Throws rp::Error
  // (kUsage) if a cost that the machine needs is not known, or if a workload has another number of
  // layers.
  [[nodiscard]] std::vector<LayerWork> layer_times(const std::vector<const LayerCost*>& costs) const;
  // Returns the times in which a task expands the quantised weights of each layer, on a GPU of
  // slowness 1; zeros if the source of layer times is a workload file.
  [[nodiscard]] std::vector<double> expansion_times(const std::vector<const LayerCost*>& costs) const;
  [[nodiscard]] double slowness_of(int gpu) const;
};

// Returns the machine for a name: the name of a GPU's profile, or the path (which contains '/' or
// ends in ".json") of a profile or a workload file. The host of a profile is the server of the published
// runs. Throws rp::Error: kUsage for a word that is neither, kBadInput for a bad file.
[[nodiscard]] EmulatedMachine emulated_machine(const std::string& name);

}  // namespace rp
