// planner/prediction/workload_file.h
// The file of `rp-plan simulate`: times of layers, and their memory and stages if they are given. Its keys:
// docs/planning.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "scheduler/plan.h"
#include "scheduler/simulation/schedule_memory.h"
#include "scheduler/workload.h"

namespace rp {

// What a workload's machine can do besides computing, for runs on it (`--device sim:FILE`). 0: without a limit.
struct DeviceSection {
  double upload_gbs = 0;  // 10^9 bytes a second, of each GPU
  double download_gbs = 0;
  double optimizer_gbs = 0;  // of updates in host memory
  double memory_gib = 0;     // of each GPU
  double host_memory_gib = 0;
  double time_scale = 1;  // what all times are multiplied with
};

struct WorkloadFile {
  Workload workload;  // round_microbatches: all of the step where the file does not say
  bool gives_round = false;
  int max_fused_layers = 2;                // beside the head, where a plan is searched for
  std::vector<LayerFootprint> memory{};    // of the layers and the head; empty where the file does not say
  std::optional<std::vector<int>> stages;  // layers of each, for schedules whose stages are bound to a GPU
  std::optional<Plan> plan;                // for RoundPipe; counts the head as a layer
  DeviceSection device{};                  // of "device"
};

// The largest step that is read: within it every command keeps to about 2 s (with a fast search) and 512 MB.
inline constexpr std::int64_t kMaxGpus = 256, kMaxLayers = 1024, kMaxMicrobatches = 65536, kMaxRounds = 128;
inline constexpr std::int64_t kMaxLayerMicrobatches = 1'048'576;  // layers times microbatches

// Throws rp::Error (kBadInput) naming the file, the entry and what would be right.
[[nodiscard]] WorkloadFile read_workload_file(const std::filesystem::path& path);

}  // namespace rp
