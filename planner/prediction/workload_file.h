// planner/prediction/workload_file.h
// Reads the file of `rp-plan simulate`: the times of layers, and optionally their memory and
// stages. Its keys: docs/planning.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "scheduler/plan.h"
#include "scheduler/simulation/schedule_memory.h"
#include "scheduler/workload.h"

namespace rp {

// The machine of a workload apart from its computing speed, for runs on it (`--device sim:FILE`).
// 0: unlimited.
struct DeviceSection {
  double upload_gbs = 0;  // of each GPU, in 10^9 bytes per second
  double download_gbs = 0;
  double optimizer_gbs = 0;  // of updates in host memory
  double memory_gib = 0;     // of each GPU
  double host_memory_gib = 0;
  double time_scale = 1;  // all times are multiplied by it
};

struct WorkloadFile {
  Workload workload;  // round_microbatches: all of the step if the file does not give it
  bool gives_round = false;
  int max_fused_layers = 2;                // in addition to the head, if a plan is searched for
  std::vector<LayerFootprint> memory{};    // of the layers, the head last; empty if the file does not give it
  std::optional<std::vector<int>> stages;  // number of layers of each, for schedules that bind stages to GPUs
  std::optional<Plan> plan;                // for RoundPipe; counts the head as a layer
  DeviceSection device{};                  // the object "device"
};

// The largest step that is accepted. Up to it every command needs at most about 2 s (with a fast
// search) and 512 MB.
inline constexpr std::int64_t kMaxGpus = 256, kMaxWorkloadLayers = 1024, kMaxMicrobatches = 65536, kMaxRounds = 128;
inline constexpr std::int64_t kMaxLayerMicrobatches = 1'048'576;  // layers times microbatches

// Reads and checks a workload file. Throws rp::Error (kBadInput) naming the file, the entry and
// what would be right.
[[nodiscard]] WorkloadFile read_workload_file(const std::filesystem::path& path);

}  // namespace rp
