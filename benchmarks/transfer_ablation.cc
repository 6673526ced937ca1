// What each part of RoundPipe is worth, in the simulator: weights that give way to inputs, gradients that give way to outputs,
// and backward stages that are cut apart from the forward ones; alone left out, and all of them. The published models with their
// settings on 8 GPUs (docs/design/transfers.md).

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "model_files/layer_costs.h"
#include "model_files/profile_file.h"
#include "scheduler/gpu_memory.h"
#include "scheduler/modelled_run.h"
#include "scheduler/planner.h"
#include "scheduler/run_simulator.h"

namespace {

struct Model {
  const char* preset = "";
  int batch = 0;  // sequences of 2048 tokens
  int rounds = 0;
  int microbatches = 0;  // of a round
  int lora_rank = 0;
};
constexpr Model kModels[] = {{"qwen3-1.7b", 512, 4, 10, 0},  {"llama3.1-8b", 256, 2, 10, 0}, {"gpt-oss-20b", 128, 1, 16, 0},
                             {"qwen3-32b", 128, 2, 10, 0},   {"qwen3-235b", 64, 1, 10, 32}};

// Both directions with the same cuts: as even as they can be, in the number of stages that is the best.
std::optional<rp::Plan> symmetric_plan(const rp::PlanTask& task) {
  rp::PlanCost cost(task);
  std::optional<rp::Cuts> best;
  double best_ms = 0;
  const int num_layers = task.workload.num_layers();
  for (int fused = task.limits.least_fused_start; fused <= num_layers; ++fused) {
    for (int stages = 1; stages <= fused; ++stages) {
      rp::Cuts cuts;
      for (int i = 1; i <= stages; ++i) cuts.forward.push_back(static_cast<int>(static_cast<long>(fused) * i / stages));
      cuts.backward = cuts.forward;
      if (!cost.fits(cuts)) continue;
      const double ms = cost.step_ms(cuts, rp::Horizon::kLong);
      if (best && ms >= best_ms) continue;
      best = cuts;
      best_ms = ms;
    }
  }
  return best ? std::optional(rp::plan_of(*best)) : std::nullopt;
}

double step_ms(const rp::RunWork& work, const rp::Plan& plan) {
  return rp::simulate_run(work, rp::stage_works(work.workload, plan), {.warm_up = 3, .steps = 6}).step_ms;
}

void run(const Model& model, bool asynchronous) {
  const rp::CostSettings settings{.sequences = static_cast<double>(model.batch) / (model.microbatches * model.rounds), .lora = {.rank = model.lora_rank}};
  const std::vector<rp::LayerCost> costs = rp::layer_costs(rp::preset_shape(model.preset), settings);
  const rp::ModelledRun modelled{
      .gpu = rp::gpu_profile("rtx4090").profile, .server = rp::server_profile("xeon6330-8gpu").profile, .num_gpus = 8,
      .accumulate = rp::Accumulate::kFp16,
      .host = {.asynchronous = asynchronous, .rounds_per_step = model.rounds, .num_microbatches = model.microbatches}};
  const rp::RunWork work = rp::modelled_run(costs, modelled);
  const rp::PlanTask task{.workload = work.workload, .round_choices = {model.microbatches}, .asynchronous = asynchronous,
                          .limits = rp::stage_limits(costs, modelled.gpu.usable_bytes(), rp::Recompute::kStage, 2)};
  const rp::Plan plan = rp::thorough_plan(task, std::chrono::seconds(2)).plan;
  const double all = step_ms(work, plan);
  const auto with = [&](auto change) {
    rp::RunWork changed = work;
    change(changed.policy);
    return 100 * (step_ms(changed, plan) / all - 1);
  };
  const double weights = with([](rp::TransferPolicy& policy) { policy.weights_give_way = false; });
  const double gradients = with([](rp::TransferPolicy& policy) { policy.gradients_give_way = false; });
  const double neither = with([](rp::TransferPolicy& policy) { policy.weights_give_way = policy.gradients_give_way = false; });
  const double roots = with([](rp::TransferPolicy& policy) { policy.roots_give_way = true; });
  const std::optional<rp::Plan> symmetric = symmetric_plan(task);
  std::printf("%-12s %-5s %9.3f %+9.2f %% %+9.2f %% %+9.2f %% %+9.2f %%", model.preset, asynchronous ? "async" : "sync", all / 1000, weights,
              gradients, neither, roots);
  if (symmetric) std::printf(" %+9.2f %%\n", 100 * (step_ms(work, *symmetric) / all - 1));
  else std::printf("  does not fit\n");
}

}  // namespace

int main() {
  std::printf("%-12s %-5s %9s | step is longer without: %s\n", "model", "", "s a step",
              "weights give way, gradients give way, both, with roots that give way, cuts of their own for backward");
  for (const Model& model : kModels) {
    for (const bool asynchronous : {false, true}) run(model, asynchronous);
  }
}
