// pipeline/effective_settings.h
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace rp {

// The settings of the runtime as they hold for this run.
struct EffectiveSettings {
  std::string device = "cpu";
  std::string store;      // "" = the best
  std::string params_on;  // "" = in memory
  std::string plan = "auto";
  bool prefetch = true;
  std::optional<bool> warm_up;  // not set: on GPUs
  std::string give_way = "all";
  std::string gpu;              // of a worker on a GPU: its UUID
  int gpu_sharers = 1;          // workers of the run on it
  std::uint64_t gpu_bytes = 0;  // of a run on GPUs: the least memory that a worker has there; 0: unknown
  std::string signals = "memops";
  std::string gpu_memory;  // "" = what is free
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
