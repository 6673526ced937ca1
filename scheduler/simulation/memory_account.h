// scheduler/simulation/memory_account.h
// What lies in each GPU's memory over a simulated run. The figures are those that gpu_memory() adds up: its buffers are
// reserved for the largest stage of each kind, these are the bytes in them that somebody still needs.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/simulation/machine.h"
#include "scheduler/simulation/run_record.h"
#include "scheduler/simulation/run_stages.h"
#include "scheduler/simulation/simulated_links.h"

namespace rp {

class MemoryAccount {
 public:
  // `stages` must outlive it. Not `records`, or a run without sizes: nothing is written down.
  MemoryAccount(const RunWork& work, const std::vector<RunStage>& stages, bool records);

  // A microbatch of a stage is computed, or recomputed, on a GPU. `starts_task`, `ends_task`: it is the task's first or
  // last one (told at the beginning of its recompute, and at the end of its backward).
  void begin_compute(double now, int gpu, int stage, bool is_recompute, bool starts_task);
  void end_compute(double now, int gpu, int stage, bool is_recompute, bool ends_task);
  // A copy ended or paused at `now`.
  void end_copy(double now, const SimulatedLinks::End& end, int stage);

  // By GPU, one sample for each moment at which something changed.
  [[nodiscard]] std::vector<std::vector<GpuMemorySample>> samples() const;

 private:
  // What its layers need beside weights, gradients, inputs and outputs.
  struct Inside {
    std::uint64_t weights = 0;  // of all its layers: given back at once
    std::uint64_t accumulators = 0;
    std::uint64_t saved = 0;              // of what is recomputed at once
    std::uint64_t forward_workspace = 0;  // of the recompute, where there is one
    std::uint64_t workspace = 0;          // of the rest
  };
  struct Change {
    double time = 0;
    std::uint64_t GpuMemory::*item = nullptr;
    std::int64_t bytes = 0;
  };
  struct Gpu {
    std::vector<Change> changes;
    // The weights that were uploaded last: what comes in pieces counts from the first one on.
    std::int64_t slot = -1;
    int layer = -1;
  };

  void take(int gpu, double time, std::uint64_t GpuMemory::*item, std::uint64_t bytes);
  void give_back(int gpu, double time, std::uint64_t GpuMemory::*item, std::uint64_t bytes);

  const std::vector<RunStage>& stages_;
  const std::vector<LayerBytes>& layers_;
  const bool records_;
  std::vector<Inside> inside_;  // by stage
  std::vector<Gpu> gpus_;
};

}  // namespace rp
