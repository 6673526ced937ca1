// pipeline/effective_settings.h
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace rp {

// The settings of the runtime that apply to this run: the result of options, variables and
// defaults.
struct EffectiveSettings {
  std::string device = "cpu";
  std::string store;      // "": the best one
  std::string params_on;  // "": in memory
  std::string plan = "auto";
  bool prefetch = true;
  std::optional<bool> warm_up;  // if not set, workers on GPUs warm up
  std::string give_way = "all";
  std::string gpu;              // UUID of the GPU of a worker on a GPU
  int gpu_sharers = 1;          // number of workers of the run on that GPU
  std::uint64_t gpu_bytes = 0;  // in a run on GPUs: the minimum of the workers' memory; 0: unknown
  std::string signals = "memops";
  std::string gpu_memory;  // "": all free memory
  bool allow_nondeterminism = false;
  bool fp16_accumulation = false;
  int threads_per_worker = 1;
  int wait_timeout_seconds = 600;
  int attach_timeout_seconds = 120;
  bool check_consistency = false;
  std::string trace;        // "" = none
  std::string gpu_profile;  // "" = none
};

}  // namespace rp
