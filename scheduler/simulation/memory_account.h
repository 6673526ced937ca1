// scheduler/simulation/memory_account.h
// Records what each GPU's memory holds over a simulated run. The kinds are those of gpu_memory().
// There, buffers are reserved for the largest stage of each kind; here, only the bytes that are
// still needed count.
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
  // `stages` must outlive this object. Records nothing if `records` is false or the layers of the
  // run have no sizes.
  MemoryAccount(const RunWork& work, const std::vector<RunStage>& stages, bool records);

  // A GPU begins or ends the computation, or the recompute, of one microbatch of a stage.
  // `starts_task`, `ends_task`: it is the task's first or last microbatch. (They are used at the
  // beginning of its recompute and at the end of its backward.)
  void begin_compute(double now, int gpu, int stage, bool is_recompute, bool starts_task);
  void end_compute(double now, int gpu, int stage, bool is_recompute, bool ends_task);
  // A copy ended or paused at `now`.
  void end_copy(double now, const SimulatedLinks::End& end, int stage);

  // Returns by GPU one sample for each moment at which something changed.
  [[nodiscard]] std::vector<std::vector<GpuMemorySample>> samples() const;

 private:
  // What a stage needs except inputs, gradients to download and outputs.
  struct Inside {
    std::uint64_t weights = 0;  // of all its layers, which are given back together
    std::uint64_t accumulators = 0;
    std::uint64_t expanded = 0;
    std::uint64_t saved = 0;              // of the layers that are recomputed together
    std::uint64_t forward_workspace = 0;  // of the recompute, if there is one
    std::uint64_t workspace = 0;          // of everything else
  };
  struct Change {
    double time = 0;
    std::uint64_t GpuMemory::*item = nullptr;
    std::int64_t bytes = 0;
  };
  struct Gpu {
    std::vector<Change> changes;
    // The slot and layer whose weights were uploaded last. Weights that come in pieces count from
    // the first piece on.
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
