// train/run/memory_check.h
// Whether the activations of a run fit into memory, before the first step.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/gpu_profile.h"
#include "train/settings/settings.h"

namespace rp {

// The least that a round keeps in host memory for its backward, by the model's shapes and the plan (docs/plans.md): the
// inputs of layers or stages in all microbatches, and what the layers of a stage save of one microbatch on each of
// `num_cpu_workers`, whose memory is the host's.
[[nodiscard]] std::uint64_t least_activation_bytes(const TrainSettings& settings, const std::string& plan,
                                                   int num_cpu_workers);

// Throws rp::Error (kNoResource) with need, what is free and what to do if `needed` is more than `available`.
void check_activations(const TrainSettings& settings, std::uint64_t needed, std::uint64_t available);

// Throws rp::Error (kNoResource), as `rp-plan plan` says it, if no plan of this run fits such GPUs.
void check_gpu_memory(const TrainSettings& settings, const GpuProfile& gpu);

}  // namespace rp
