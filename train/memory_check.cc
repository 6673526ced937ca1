#include "train/memory_check.h"

#include <algorithm>
#include <vector>

#include "common/run_depth.h"
#include "common/text.h"
#include "model_files/profile_file.h"
#include "planner/run_prediction.h"
#include "roundpipe/error.h"
#include "scheduler/host_memory.h"
#include "scheduler/layer_cost.h"

namespace rp {

std::uint64_t least_activation_bytes(const TrainSettings& s, const std::string& plan) {
  constexpr const char* kAnyGpu = "rtx4090";  // no number of bytes depends on it
  TrainingSetup setup;
  setup.model = config_of_model(s.model.string());
  setup.gpu = gpu_profile(kAnyGpu).profile;
  setup.sequence_length = s.sequence_length;
  setup.batch = static_cast<int>(s.batch_size);
  setup.parts = s.parts;
  const double sequences = static_cast<double>(s.sequences_of_round()) / static_cast<double>(s.num_microbatches);
  const int num_layers = static_cast<int>(setup.model.num_layers()) + 2;  // embedding and head
  const HostSettings host{.recompute = s.recompute_grain.value_or(RecomputeGrain::kStage), .num_microbatches = static_cast<int>(s.num_microbatches)};
  const std::vector<LayerCost> costs = costs_of(setup, sequences);
  std::uint64_t largest_input = 0;
  for (std::size_t layer = 1; layer < costs.size(); ++layer) largest_input = std::max(largest_input, costs[layer].input_bytes);
  const std::uint64_t of_a_round = host_memory(costs, parse_plan(plan, num_layers), host).activations / kRoundsInFlight;
  // Gradients of inputs are counted there, too, and those are never all there at once.
  const std::uint64_t of_gradients = 2 * largest_input * static_cast<std::uint64_t>(s.num_microbatches);
  const std::uint64_t of_sixteen_bits = of_a_round - std::min(of_a_round, of_gradients);
  return s.dtype == DType::kFloat32 ? 2 * of_sixteen_bits : of_sixteen_bits;
}

void check_activations(const TrainSettings& s, std::uint64_t needed, std::uint64_t available) {
  if (needed <= available) return;
  const double share = static_cast<double>(available) / static_cast<double>(needed);
  const auto fitting = static_cast<std::int64_t>(share * static_cast<double>(s.sequences_of_round()));
  const std::string remedy = fitting >= 1 ? cat("give a round at most ", fitting, " sequences: a smaller --batch-size, or more --rounds-per-step")
                                          : "give a shorter --sequence-length";
  throw Error(ExitCode::kNoResource, cat("a round of ", s.sequences_of_round(), " sequences of ", s.sequence_length, " tokens keeps at least ",
                                         bytes_text(needed), " of activations in host memory for its backward, but ", bytes_text(available),
                                         " are free; ", remedy));
}

}  // namespace rp
