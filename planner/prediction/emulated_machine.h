// planner/prediction/emulated_machine.h
// What `--device sim:NAME` means: how long layers, copies and updates take, and how much memory there is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/gpu_profile.h"
#include "scheduler/layer_cost.h"
#include "scheduler/workload.h"

namespace rp {

struct EmulatedMachine {
  std::string name;  // as "sim:rtx4090"
  // Times of layers: from what they cost on this GPU, or as a workload file gives them, time_scale included.
  std::optional<GpuProfile> gpu;
  std::optional<Workload> workload;
  // 10^9 bytes a second; 0: infinitely fast.
  double upload_gbs = 0;
  double download_gbs = 0;
  double optimizer_gbs = 0;
  double hop_ms = 0;               // of an activation between two GPUs, beyond its copies
  double copy_latency_ms = 0;      // of each copy
  std::uint64_t memory_bytes = 0;  // of a GPU; 0: without a limit
  std::uint64_t host_memory_bytes = 0;

  // By layer, for one microbatch on a GPU of slowness 1. `costs` has an element for each layer of the model, null where
  // nobody knows what the layer costs. Throws rp::Error (kUsage) where the machine needs to know, and for a workload of
  // another number of layers.
  [[nodiscard]] std::vector<LayerWork> layer_times(const std::vector<const LayerCost*>& costs) const;
  [[nodiscard]] double slowness_of(int gpu) const;
};

// `name`: of a GPU's profile; or a path, which has a '/' or ends in ".json", of a profile or a workload. The host of a
// profile is the server of the published runs. Throws rp::Error: kUsage for a word that is neither, kBadInput for a bad
// file.
[[nodiscard]] EmulatedMachine emulated_machine(const std::string& name);

}  // namespace rp
