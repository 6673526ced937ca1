#include "train/run/memory_check.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/run_depth.h"
#include "common/text.h"
#include "model_files/profile_file.h"
#include "roundpipe/error.h"
#include "scheduler/gpu_memory.h"
#include "scheduler/host_memory.h"
#include "scheduler/layer_cost.h"
#include "train/run/training_setup.h"

namespace rp {

namespace {

double sequences_of_microbatch(const TrainSettings& s) {
  return static_cast<double>(s.sequences_of_round()) / static_cast<double>(s.num_microbatches);
}

// Returns the maximum, over the plan's stages, of the bytes that a stage saves of one microbatch
// for its backward. (`saved` of gpu_memory() belongs to the stage whose saved activations and
// workspace together are largest.)
std::uint64_t saved_bytes(const std::vector<LayerCost>& costs, const Plan& plan, RecomputeGrain recompute) {
  std::uint64_t bytes = 0;
  const auto add = [&](const LayerRange& layers, Phase phase) {
    bytes = std::max(bytes, stage_memory(costs, layers, phase, recompute).saved);
  };
  if (const int num_layers = static_cast<int>(costs.size()); plan.fused_start < num_layers)
    add({plan.fused_start, num_layers}, Phase::kFused);
  for (const LayerRange& layers : plan.backward) add(layers, Phase::kBackward);
  return bytes;
}

}  // namespace

std::uint64_t least_activation_bytes(const TrainSettings& s, const std::string& plan_text, int num_cpu_workers) {
  constexpr const char* kAnyGpu = "rtx4090";  // any GPU will do: no byte count depends on it
  const TrainingSetup setup = setup_of(s, gpu_profile(kAnyGpu).profile, 1);
  const Plan plan = parse_plan(plan_text, static_cast<int>(setup.model.num_layers()) + 2);  // embedding, head
  const HostSettings host{.recompute = *setup.recompute, .num_microbatches = static_cast<int>(s.num_microbatches)};
  const std::vector<LayerCost> costs = costs_of(setup, sequences_of_microbatch(s));
  std::uint64_t largest_input = 0;
  for (std::size_t layer = 1; layer < costs.size(); ++layer)
    largest_input = std::max(largest_input, costs[layer].input_bytes);
  const std::uint64_t of_a_round = host_memory(costs, plan, host).activations / kRoundsInFlight;
  // host_memory() also counts gradients of inputs, which never all exist at the same time.
  const std::uint64_t of_gradients = 2 * largest_input * static_cast<std::uint64_t>(s.num_microbatches);
  const std::uint64_t of_workers =
      static_cast<std::uint64_t>(num_cpu_workers) * saved_bytes(costs, plan, host.recompute);
  const std::uint64_t of_sixteen_bits = of_a_round - std::min(of_a_round, of_gradients) + of_workers;
  return s.dtype == DType::kFloat32 ? 2 * of_sixteen_bits : of_sixteen_bits;
}

void check_activations(const TrainSettings& s, std::uint64_t needed, std::uint64_t available) {
  if (needed <= available) return;
  const double share = static_cast<double>(available) / static_cast<double>(needed);
  const auto fitting = static_cast<std::int64_t>(share * static_cast<double>(s.sequences_of_round()));
  const std::string remedy = fitting >= 1 ? cat("give a round at most ", fitting,
                                                " sequences: a smaller --batch-size, or more --rounds-per-step")
                                          : "give a shorter --sequence-length";
  throw Error(ExitCode::kNoResource,
              cat("a round of ", s.sequences_of_round(), " sequences of ", s.sequence_length, " tokens keeps at least ",
                  bytes_text(needed), " of activations in host memory for its backward, but ", bytes_text(available),
                  " are free; ", remedy));
}

void check_gpu_memory(const TrainSettings& s, const GpuProfile& gpu) {
  const TrainingSetup setup = setup_of(s, gpu, 1);
  (void)stage_limits(costs_of(setup, std::ceil(sequences_of_microbatch(s))), gpu.usable_bytes(), *setup.recompute, 0);
}

}  // namespace rp
