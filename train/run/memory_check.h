// train/run/memory_check.h
// Checks before the first step that the activations of a run fit into memory.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/gpu_profile.h"
#include "train/settings/settings.h"

namespace rp {

// Returns the minimum number of bytes that a round keeps in host memory for its backward, computed
// from the model's shapes and the plan (docs/plans.md): the inputs of layers or stages of all
// microbatches, and, for each of `num_cpu_workers`, what the layers of a stage save of one
// microbatch, since the memory of these workers is the host's.
[[nodiscard]] std::uint64_t least_activation_bytes(const TrainSettings& settings, const std::string& plan,
                                                   int num_cpu_workers);

// Throws rp::Error (kNoResource) if `needed` is more than `available`. The message has the need,
// the available memory and a remedy.
void check_activations(const TrainSettings& settings, std::uint64_t needed, std::uint64_t available);

// Throws rp::Error (kNoResource), with the message of `rp-plan plan`, if no plan of this run fits
// such GPUs.
void check_gpu_memory(const TrainSettings& settings, const GpuProfile& gpu);

}  // namespace rp
