#include "planner/run_prediction.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "common/text.h"
#include "roundpipe/error.h"
#include "scheduler/modelled_run.h"
#include "scheduler/planner.h"
#include "scheduler/run_simulator.h"

namespace rp {

namespace {

struct Rounds {
  int microbatches = 0;
  int per_step = 0;
};

// Splits of a step that are worth a look: rounds of as many microbatches as GPUs or somewhat more.
std::vector<Rounds> round_choices(const TrainingSetup& setup) {
  std::vector<int> microbatches = {setup.round_microbatches};
  if (setup.round_microbatches == 0) {
    const int gpus = setup.num_gpus;
    microbatches = {gpus, gpus + (gpus + 3) / 4, gpus + (gpus + 1) / 2, 2 * gpus, 4 * gpus};
  }
  std::vector<Rounds> choices;
  for (const int count : microbatches) {
    if (setup.rounds_per_step > 0) {
      choices.push_back({count, setup.rounds_per_step});
      continue;
    }
    for (int rounds = 1; count * rounds <= setup.batch; rounds *= 2) choices.push_back({count, rounds});
  }
  std::erase_if(choices, [&setup](const Rounds& rounds) { return rounds.microbatches * rounds.per_step > setup.batch; });
  if (!choices.empty()) return choices;
  if (setup.round_microbatches == 0 && setup.rounds_per_step == 0) return {{setup.batch, 1}};
  throw Error(ExitCode::kUsage, cat("a step of ", setup.batch, " sequences cannot be cut into ",
                                    std::max(1, setup.rounds_per_step), " times ", std::max(1, setup.round_microbatches),
                                    " microbatches; give fewer rounds or microbatches, or a larger --batch-size"));
}

ModelledRun modelled(const TrainingSetup& setup, const Rounds& rounds) {
  return {.gpu = setup.gpu, .server = setup.server, .num_gpus = setup.num_gpus, .accumulate = setup.accumulate,
          .host = {.asynchronous = setup.asynchronous, .rounds_per_step = rounds.per_step, .num_microbatches = rounds.microbatches},
          .pinned_weights = setup.pinned_weights};
}

double sequences_of(const TrainingSetup& setup, const Rounds& rounds) {
  return static_cast<double>(setup.batch) / (rounds.microbatches * rounds.per_step);
}

// The last layers become a part of the head: what is planned is how the others are cut.
void fuse_with_head(PlanTask& task, int num_fused) {
  std::vector<LayerWork>& layers = task.workload.layers;
  for (; num_fused > 0 && !layers.empty(); --num_fused) {
    task.workload.head.forward += layers.back().forward;
    task.workload.head.backward += layers.back().backward;
    layers.pop_back();
  }
  task.limits.least_fused_start = task.workload.num_layers();
  for (std::vector<int>* ends : {&task.limits.forward, &task.limits.backward}) {
    ends->resize(layers.size() + 1);
    for (int& end : *ends) end = std::min(end, task.workload.num_layers() + 1);
  }
}

// Memory is reckoned for the largest microbatch, times for the mean one.
PlanChoice choose_plan(const TrainingSetup& setup, const Rounds& rounds, Effort effort) {
  const double sequences = sequences_of(setup, rounds);
  const RunWork work = modelled_run(costs_of(setup, sequences), modelled(setup, rounds));
  PlanTask task{.workload = work.workload, .round_choices = {rounds.microbatches}, .asynchronous = setup.asynchronous,
                .limits = stage_limits(costs_of(setup, std::ceil(sequences)), setup.gpu.usable_bytes(), Recompute::kStage,
                                       setup.max_fused_layers)};
  if (setup.exact_fused_layers >= 0) fuse_with_head(task, setup.exact_fused_layers);
  return effort == Effort::kFast ? fast_plan(task) : thorough_plan(task);
}

RunPrediction predict(const TrainingSetup& setup, const Rounds& rounds, const PlanChoice& choice, const RunLength& length) {
  const double sequences = sequences_of(setup, rounds);
  const std::vector<LayerCost> costs = costs_of(setup, sequences), largest = costs_of(setup, std::ceil(sequences));
  const ModelledRun run = modelled(setup, rounds);
  const RunWork work = modelled_run(costs, run);
  RunPrediction result{.num_gpus = setup.num_gpus, .round_microbatches = rounds.microbatches, .rounds_per_step = rounds.per_step,
                       .microbatch_sequences = sequences, .plan = choice.plan, .num_layers = static_cast<int>(costs.size()),
                       .lower_bound_ms = choice.lower_bound_ms};
  result.gpu = gpu_memory(largest, choice.plan, Recompute::kStage);
  result.host = host_memory(costs, choice.plan, run.host);
  result.run = simulate_run(work, stage_works(work.workload, choice.plan), length);
  // What the simulated run had at once is less than two whole rounds.
  result.host.activations = static_cast<std::uint64_t>(result.run.peak_activation_bytes);
  result.tokens_per_s = 1000.0 * setup.batch * static_cast<double>(setup.sequence_length) / result.run.step_ms;
  return result;
}

bool fits(const TrainingSetup& setup, std::int64_t sequence_length) {
  TrainingSetup longer = setup;
  longer.sequence_length = sequence_length;
  const std::vector<LayerCost> costs = costs_of(longer, 1);
  try {
    (void)stage_limits(costs, setup.gpu.usable_bytes(), Recompute::kStage, 0);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kNoResource) throw;
    return false;
  }
  Plan plan;
  plan.fused_start = static_cast<int>(costs.size()) - 1;
  for (int layer = 0; layer < plan.fused_start; ++layer) {
    plan.forward.push_back({layer, layer + 1});
    plan.backward.insert(plan.backward.begin(), {layer, layer + 1});
  }
  const Rounds rounds{.microbatches = setup.num_gpus, .per_step = 1};
  const RunWork work = modelled_run(costs, modelled(longer, rounds));
  const RunResult run = simulate_run(work, stage_works(work.workload, plan), {.warm_up = 1, .steps = 2});
  HostMemory host = host_memory(costs, plan, modelled(longer, rounds).host);
  host.activations = static_cast<std::uint64_t>(run.peak_activation_bytes);
  return static_cast<double>(host.total()) <= setup.host_bytes;
}

}  // namespace

std::vector<LayerCost> costs_of(const TrainingSetup& setup, double sequences) {
  return layer_costs(setup.shape, {.sequences = sequences,
                                   .sequence_length = setup.sequence_length,
                                   .lora = {.rank = setup.lora_rank, .on_experts = setup.lora_experts}});
}

RunPrediction predict_run(const TrainingSetup& setup, Effort effort) {
  struct Candidate {
    Rounds rounds;
    PlanChoice choice;
  };
  std::vector<Candidate> candidates;
  std::optional<Error> problem;
  for (const Rounds& rounds : round_choices(setup)) {
    try {
      candidates.push_back({rounds, choose_plan(setup, rounds, Effort::kFast)});
    } catch (const Error& error) {
      if (error.code() != ExitCode::kNoResource) throw;
      problem = error;
    }
  }
  if (candidates.empty()) throw *problem;
  // With links and updates, the best by computing alone: as many as are worth the time.
  constexpr std::size_t kSimulated = 4;
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.choice.step_ms < b.choice.step_ms; });
  const RunLength brief{.warm_up = 2, .steps = 2};
  const auto fits_host = [&setup](const RunPrediction& of) { return static_cast<double>(of.host.total()) <= setup.host_bytes; };
  std::optional<RunPrediction> best;
  Rounds best_rounds;
  for (std::size_t i = 0; i < candidates.size() && (i < kSimulated || !fits_host(*best)); ++i) {
    RunPrediction next = predict(setup, candidates[i].rounds, candidates[i].choice, brief);
    if (best && (fits_host(next) != fits_host(*best) ? fits_host(*best) : next.tokens_per_s <= best->tokens_per_s)) continue;
    best = std::move(next);
    best_rounds = candidates[i].rounds;
  }
  RunLength length = kPredictedLength;
  length.record = setup.records_spans;
  return predict(setup, best_rounds, choose_plan(setup, best_rounds, effort), length);
}

std::int64_t longest_sequence(const TrainingSetup& setup) {
  constexpr std::int64_t kGrain = 256, kMost = std::int64_t{1} << 16;  // grains
  std::int64_t longest = 0, too_long = kMost;
  if (!fits(setup, kGrain)) return 0;
  longest = 1;
  while (too_long - longest > 1) {
    const std::int64_t middle = (longest + too_long) / 2;
    (fits(setup, middle * kGrain) ? longest : too_long) = middle;
  }
  return longest * kGrain;
}

}  // namespace rp
