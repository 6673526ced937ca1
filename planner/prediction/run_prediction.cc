#include "planner/prediction/run_prediction.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "common/check.h"
#include "common/nodes.h"
#include "common/text.h"
#include "roundpipe/error.h"
#include "scheduler/planner.h"
#include "scheduler/simulation/machine_run.h"
#include "scheduler/simulation/predicted_machine.h"
#include "scheduler/simulation/run_simulator.h"

namespace rp {

namespace {

struct Rounds {
  int microbatches = 0;
  int per_step = 0;  // of all nodes
};

// Returns the number of rounds of a step that the first node computes.
int own_rounds(const TrainingSetup& setup, const Rounds& rounds) {
  return rounds_of_first_node(rounds.per_step, setup.num_nodes);
}

// A way to compute a step: what is chosen before its plan.
struct Way {
  Rounds rounds;
  RecomputeGrain recompute = RecomputeGrain::kStage;
  std::optional<int> most_kept_inputs{};  // see StageLimits
};

// Returns the maximum number of microbatches that a node computes of a step. It keeps the simulation of a run short,
// because a user waits for it.
std::int64_t max_microbatches(const TrainingSetup& setup) {
  return std::max<std::int64_t>(1, kMaxLayerMicrobatchesOfARun / (setup.model.num_layers() + 2));
}

// Returns the splits of a step that are worth trying. Unless the setup gives their sizes, rounds
// have one to four times as many microbatches as there are GPUs, and each node computes 1, 2, 4, ...
// rounds of a step.
std::vector<Rounds> round_choices(const TrainingSetup& setup) {
  check_run_size(setup);
  const int of_a_node = setup.batch / setup.num_nodes;  // sequences
  std::vector<int> microbatches = {setup.round_microbatches};
  if (setup.round_microbatches == 0) {
    const int gpus = setup.num_gpus;
    microbatches = {gpus, gpus + (gpus + 3) / 4, gpus + (gpus + 1) / 2, 2 * gpus, 4 * gpus};
    microbatches.erase(std::unique(microbatches.begin(), microbatches.end()), microbatches.end());
  }
  std::vector<Rounds> choices;
  for (const int count : microbatches) {
    if (setup.rounds_per_step > 0) {
      choices.push_back({count, setup.rounds_per_step});
      continue;
    }
    const std::int64_t most = std::min<std::int64_t>(of_a_node, std::max<std::int64_t>(count, max_microbatches(setup)));
    for (int rounds = 1; std::int64_t{count} * rounds <= most; rounds *= 2)
      choices.push_back({count, rounds * setup.num_nodes});
  }
  std::erase_if(choices, [&setup](const Rounds& rounds) {
    return std::int64_t{rounds.microbatches} * rounds.per_step > setup.batch;
  });
  if (!choices.empty()) return choices;
  if (setup.round_microbatches == 0 && setup.rounds_per_step == 0 && of_a_node > 0)
    return {{of_a_node, setup.num_nodes}};
  throw Error(
      ExitCode::kUsage,
      cat("a step of ", setup.batch, " sequences cannot be cut into ", std::max(setup.num_nodes, setup.rounds_per_step),
          " times ", std::max(1, setup.round_microbatches), " microbatches; give fewer ",
          setup.num_nodes > 1 ? "nodes, " : "", "rounds or microbatches, or a larger --batch-size"));
}

MachineRun emulated(const TrainingSetup& setup, const Way& way) {
  return {.gpu = setup.gpu,
          .server = setup.server,
          .num_gpus = setup.num_gpus,
          .accumulate = setup.accumulate,
          .host = {.asynchronous = setup.asynchronous,
                   .rounds_per_step = way.rounds.per_step,
                   .recompute = way.recompute,
                   .num_microbatches = way.rounds.microbatches,
                   .place = {.node = 0, .num_nodes = setup.num_nodes}},
          .pinned_weights = setup.pinned_weights,
          .network = setup.network};
}

double sequences_of(const TrainingSetup& setup, const Rounds& rounds) {
  return static_cast<double>(setup.batch) / (rounds.microbatches * rounds.per_step);
}

// Makes the last layers a part of the head, so that only the cut of the other layers is planned.
void fuse_with_head(PlanTask& task, int num_fused) {
  std::vector<LayerWork>& layers = task.workload.layers;
  for (; num_fused > 0 && !layers.empty(); --num_fused) {
    task.workload.head.forward += layers.back().forward;
    task.workload.head.backward += layers.back().backward;
    layers.pop_back();
    if (task.network.layers.empty()) continue;
    const LayerMessages head = task.network.layers.back();
    task.network.layers.pop_back();
    task.network.layers.back().gradient += head.gradient;
    task.network.layers.back().weights += head.weights;
  }
  task.limits.least_fused_start = task.workload.num_layers();
  for (std::vector<int>* ends : {&task.limits.forward, &task.limits.backward}) {
    ends->resize(layers.size() + 1);
    for (int& end : *ends) end = std::min(end, task.workload.num_layers() + 1);
  }
}

// Memory is computed for the largest microbatch, times for the mean one.
StageLimits limits_of(const TrainingSetup& setup, const Way& way) {
  StageLimits limits = stage_limits(costs_of(setup, std::ceil(sequences_of(setup, way.rounds))),
                                    setup.gpu.usable_bytes(), way.recompute, setup.max_fused_layers);
  limits.most_kept_inputs = way.most_kept_inputs;
  return limits;
}

// Splits of the step are compared by plans from short searches, with the budget that fast_plan()
// has for models of few layers. For the split that is chosen, a search with the full effort
// follows.
constexpr std::uint64_t kComparedTasks = 13'500'000;

PlanChoice compared_plan(const PlanTask& task) {
  PlanSearch search(task);
  search.run(task.asynchronous ? kComparedTasks / 5 * 6 : kComparedTasks);
  return search.best();
}

PlanTask task_of(const TrainingSetup& setup, const Way& way) {
  const RunWork work = run_work(costs_of(setup, sequences_of(setup, way.rounds)), emulated(setup, way));
  PlanTask task{.workload = work.workload,
                .round_choices = {way.rounds.microbatches},
                .asynchronous = setup.asynchronous,
                .limits = limits_of(setup, way),
                .network = plan_network(work.layers, work.nodes)};
  if (setup.exact_fused_layers >= 0) fuse_with_head(task, setup.exact_fused_layers);
  return task;
}

// `effort`: how long to search; nullopt: only as long as the comparison of splits needs.
PlanChoice choose_plan(const TrainingSetup& setup, const Way& way, std::optional<Effort> effort) {
  const PlanTask task = task_of(setup, way);
  if (!effort) return compared_plan(task);
  return *effort == Effort::kFast ? fast_plan(task) : thorough_plan(task);
}

// Returns `length` with fewer counted steps if otherwise the simulation of a run would take more
// than about half a second. The number of events grows with the number of tasks, and each event
// takes longer with more GPUs.
RunLength affordable(RunLength length, std::size_t num_stages, const TrainingSetup& setup, const Rounds& rounds) {
  constexpr std::int64_t kMaxTasks = 120'000, kFewSteps = 2, kFewGpus = 16;
  const std::int64_t tasks = static_cast<std::int64_t>(num_stages) * rounds.microbatches * own_rounds(setup, rounds);
  const std::int64_t most = kMaxTasks * kFewGpus / std::max<std::int64_t>(kFewGpus, setup.num_gpus);
  const std::int64_t steps = most / tasks - length.warm_up - 1;
  if (steps < kFewSteps && !length.record) length.warm_up = static_cast<int>(kFewSteps);
  length.steps = static_cast<int>(std::clamp<std::int64_t>(steps, kFewSteps, length.steps));
  return length;
}

RunPrediction predict(const TrainingSetup& setup, const Way& way, const PlanChoice& choice, const RunLength& length) {
  const double sequences = sequences_of(setup, way.rounds);
  const std::vector<LayerCost> costs = costs_of(setup, sequences), largest = costs_of(setup, std::ceil(sequences));
  const MachineRun run = emulated(setup, way);
  const RunWork work = run_work(costs, run);
  RunPrediction result{.num_gpus = setup.num_gpus,
                       .num_nodes = setup.num_nodes,
                       .round_microbatches = way.rounds.microbatches,
                       .rounds_per_step = way.rounds.per_step,
                       .microbatch_sequences = sequences,
                       .recompute = way.recompute,
                       .plan = choice.plan,
                       .num_layers = static_cast<int>(costs.size()),
                       .lower_bound_ms = choice.lower_bound_ms};
  result.gpu = gpu_memory(largest, choice.plan, way.recompute);
  result.host = host_memory(costs, choice.plan, run.host);
  const std::vector<StageWork> stages = stage_works(work.workload, choice.plan);
  result.run = simulate_run(work, stages, affordable(length, stages.size(), setup, way.rounds));
  // host_memory() counts the blocks of two whole rounds. The peak of the simulated run is less.
  result.host.activations = static_cast<std::uint64_t>(result.run.peak_activation_bytes);
  result.tokens_per_s = 1000.0 * setup.batch * static_cast<double>(setup.sequence_length) / result.run.step_ms;
  return result;
}

// Predicts what is reported: as predict(), and with the step that the network would leave if it took no time.
RunPrediction predict_in_full(const TrainingSetup& setup, const Way& way, const PlanChoice& choice) {
  RunLength length = kPredictedLength;
  length.record = setup.records_spans;
  RunPrediction result = predict(setup, way, choice, length);
  result.without_network_ms = result.run.step_ms;
  if (setup.num_nodes == 1) return result;
  TrainingSetup without_network = setup;
  without_network.network = {};
  result.without_network_ms = predict(without_network, way, choice, kPredictedLength).run.step_ms;
  return result;
}

// Recompute by layer uses more of the host's memory and links than by stage, so it must be faster
// by more than this factor.
constexpr double kAsFast = 1.001;

// True if `a` fits the host and `b` does not, or if both or neither fit and `a` has more than
// `as_fast` times the tokens/s of `b`.
bool is_better(const TrainingSetup& setup, const RunPrediction& a, const RunPrediction& b, double as_fast = 1) {
  if (fits_host(setup, a) != fits_host(setup, b)) return fits_host(setup, a);
  return a.tokens_per_s > as_fast * b.tokens_per_s;
}

struct Candidate {
  Way way;
  PlanChoice choice;
};

// Returns a plan for each split of the step. Throws rp::Error (kNoResource) if none fits the GPU.
std::vector<Candidate> candidates_of(const TrainingSetup& setup, RecomputeGrain recompute) {
  std::vector<Candidate> candidates;
  std::optional<Error> problem;
  for (const Rounds& rounds : round_choices(setup)) {
    const Way way{.rounds = rounds, .recompute = recompute};
    try {
      candidates.push_back({way, choose_plan(setup, way, std::nullopt)});
    } catch (const Error& error) {
      if (error.code() != ExitCode::kNoResource) throw;
      problem = error;
    }
  }
  if (candidates.empty()) throw *problem;
  return candidates;
}

// Returns candidates that recompute by layer, for those splits whose plan by stage has a stage that
// fills the GPU's memory and that could be longer if it recomputed by layer.
std::vector<Candidate> held_by_layer(const TrainingSetup& setup, const std::vector<Candidate>& by_stage) {
  std::vector<Candidate> candidates;
  for (const Candidate& candidate : by_stage) {
    const Way by_layer{.rounds = candidate.way.rounds, .recompute = RecomputeGrain::kLayer};
    if (!is_held(candidate.choice.plan, limits_of(setup, candidate.way), limits_of(setup, by_layer))) continue;
    candidates.push_back({by_layer, choose_plan(setup, by_layer, std::nullopt)});
  }
  return candidates;
}

struct Best {
  Candidate candidate;
  RunPrediction prediction;
};

constexpr RunLength kBrief{.warm_up = 2, .steps = 2};

// Sorts by the time of a step without copies and updates.
void sort_by_computing(std::vector<Candidate>& candidates) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.choice.step_ms < b.choice.step_ms; });
}

// Simulates, with links and updates, the few candidates that are the fastest by computing time
// alone, and returns the fastest. On several nodes all candidates are simulated, because the network
// needs longer if a step has more rounds.
Best fastest_of(const TrainingSetup& setup, std::vector<Candidate> candidates) {
  sort_by_computing(candidates);
  if (setup.num_nodes == 1) candidates.resize(std::min<std::size_t>(candidates.size(), 4));
  std::optional<Best> best;
  for (const Candidate& candidate : candidates) {
    RunPrediction next = predict(setup, candidate.way, candidate.choice, kBrief);
    if (!best || next.tokens_per_s > best->prediction.tokens_per_s) best = {candidate, std::move(next)};
  }
  return *best;
}

// Returns the candidate's split of the step with the plan of the longest stages, which keep the fewest inputs.
Candidate with_longest_stages(const TrainingSetup& setup, const Candidate& candidate) {
  const PlanTask task = task_of(setup, candidate.way);
  const Cuts longest = longest_cuts(task.limits, task.workload.num_layers() + 1);
  Candidate result{candidate.way, {.plan = plan_of(longest), .lower_bound_ms = PlanCost(task).lower_bound_ms(longest)}};
  result.way.most_kept_inputs = kept_inputs(longest);
  return result;
}

// Returns the host memory that is needed, with an upper bound of the activations.
HostMemory host_bound(const TrainingSetup& setup, const Candidate& candidate) {
  const Way& way = candidate.way;
  return host_memory(costs_of(setup, sequences_of(setup, way.rounds)), candidate.choice.plan,
                     emulated(setup, way).host);
}

// Returns a run with the candidate's split of the step that fits the host, if one is found. Plans that keep fewer and
// fewer inputs are searched, beginning with as many as there is memory for.
std::optional<Best> held_by_host(const TrainingSetup& setup, const Candidate& candidate) {
  const Candidate longest = with_longest_stages(setup, candidate);
  const HostMemory bound = host_bound(setup, longest);
  const double room = setup.host_bytes - static_cast<double>(bound.total() - bound.activations);
  if (room < 0) return std::nullopt;
  const auto simulated = [&setup](const Candidate& with) {
    RunPrediction brief = predict(setup, with.way, with.choice, kBrief);
    return fits_host(setup, brief) ? predict(setup, with.way, with.choice, kPredictedLength) : brief;
  };
  const Best least{longest, simulated(longest)};
  if (!fits_host(setup, least.prediction)) return std::nullopt;
  Best held{candidate, simulated(candidate)};
  while (!fits_host(setup, held.prediction)) {
    const int present = kept_inputs(held.prediction.plan);
    // By layer, the inputs of all layers are kept.
    if (present <= *longest.way.most_kept_inputs || candidate.way.recompute == RecomputeGrain::kLayer) return least;
    const double affordable = present * room / static_cast<double>(held.prediction.host.activations);
    Way& way = held.candidate.way;
    way.most_kept_inputs = std::clamp(static_cast<int>(affordable), *longest.way.most_kept_inputs, present - 1);
    held.candidate.choice = choose_plan(setup, way, std::nullopt);
    held.prediction = simulated(held.candidate);
  }
  return is_better(setup, least.prediction, held.prediction) ? least : held;
}

// Returns the fastest run that fits the host, with the plan of a candidate or with longer stages, so that fewer inputs
// are kept; if none fits, the candidate that needs the least host memory.
Candidate best_held_by_host(const TrainingSetup& setup, std::vector<Candidate> candidates) {
  sort_by_computing(candidates);
  std::optional<Best> best;
  for (const Candidate& candidate : candidates) {
    // Longer stages make no step shorter.
    if (best && best->prediction.run.step_ms <= candidate.choice.step_ms) break;
    std::optional<Best> next = held_by_host(setup, candidate);
    if (next && (!best || next->prediction.tokens_per_s > best->prediction.tokens_per_s)) best = std::move(next);
  }
  if (best) return best->candidate;
  for (Candidate& candidate : candidates) candidate = with_longest_stages(setup, candidate);
  return *std::min_element(candidates.begin(), candidates.end(), [&setup](const Candidate& a, const Candidate& b) {
    return host_bound(setup, a).total() < host_bound(setup, b).total();
  });
}

bool fits(const TrainingSetup& setup, std::int64_t sequence_length) {
  TrainingSetup longer = setup;
  longer.sequence_length = sequence_length;
  const std::vector<LayerCost> costs = costs_of(longer, 1);
  const RecomputeGrain recompute = setup.recompute.value_or(RecomputeGrain::kStage);
  Plan plan;
  try {
    const StageLimits limits = stage_limits(costs, setup.gpu.usable_bytes(), recompute, setup.max_fused_layers);
    plan = plan_of(longest_cuts(limits, static_cast<int>(costs.size())));
  } catch (const Error& error) {
    if (error.code() != ExitCode::kNoResource) throw;
    return false;
  }
  const MachineRun run_of_longest = emulated(
      longer, {.rounds = {.microbatches = setup.num_gpus, .per_step = setup.num_nodes}, .recompute = recompute});
  HostMemory host = host_memory(costs, plan, run_of_longest.host);
  // The activations of a run need between 0 and `host.activations` bytes. If both bounds lead to
  // the same answer, no simulation is needed.
  if (static_cast<double>(host.total()) <= setup.host_bytes) return true;
  if (static_cast<double>(host.total() - host.activations) > setup.host_bytes) return false;
  const RunWork work = run_work(costs, run_of_longest);
  const RunResult run = simulate_run(work, stage_works(work.workload, plan), {.warm_up = 1, .steps = 2});
  host.activations = static_cast<std::uint64_t>(run.peak_activation_bytes);
  return static_cast<double>(host.total()) <= setup.host_bytes;
}

}  // namespace

void check_run_size(const TrainingSetup& setup) {
  if (const std::int64_t layers = setup.model.num_layers(); layers > kMaxPlannedLayers) {
    throw Error(ExitCode::kUsage, cat("the model has ", layers, " layers; rp-plan plans models of at most ",
                                      kMaxPlannedLayers, ": give the folder of a model with fewer"));
  }
  if (const std::int64_t most = kMaxLayerGpus / std::max<std::int64_t>(1, setup.model.num_layers());
      setup.num_gpus > most) {
    throw Error(ExitCode::kUsage, cat("a model of ", setup.model.num_layers(), " layers is planned for at most ", most,
                                      " GPUs, not ", setup.num_gpus, ": give fewer --gpus"));
  }
  if (setup.rounds_per_step > 0 && setup.rounds_per_step < setup.num_nodes) {
    throw Error(ExitCode::kUsage,
                cat("a step of ", setup.rounds_per_step, setup.rounds_per_step == 1 ? " round" : " rounds",
                    " cannot be shared by ", setup.num_nodes,
                    " nodes, each of which computes at least one: give more --rounds-per-step"));
  }
  const std::int64_t microbatches =
      std::int64_t{std::max(1, setup.round_microbatches)} *
      rounds_of_first_node(std::max(setup.num_nodes, setup.rounds_per_step), setup.num_nodes);
  if (microbatches <= max_microbatches(setup)) return;
  throw Error(
      ExitCode::kUsage,
      cat("a step of ", microbatches, " microbatches", setup.num_nodes > 1 ? " on each node" : "",
          " is too long to simulate for ", setup.model.num_layers(), " layers; at most ", max_microbatches(setup),
          " are: give fewer --microbatches or --rounds-per-step (each microbatch has more sequences then)"));
}

bool is_planned(const TrainingSetup& setup) {
  try {
    check_run_size(setup);
    return true;
  } catch (const Error&) {
    return false;
  }
}

bool fits_host(const TrainingSetup& setup, const RunPrediction& prediction) {
  return static_cast<double>(prediction.host.total()) <= setup.host_bytes;
}

std::vector<LayerCost> costs_of(const TrainingSetup& setup, double sequences) {
  return layer_costs(setup.model, {.sequences = sequences,
                                   .sequence_length = setup.sequence_length,
                                   .parts = setup.parts,
                                   .accumulate = setup.accumulate});
}

RunPrediction predict_run(const TrainingSetup& setup, Effort effort) {
  const auto searched = [&](const Way& way) { return predict_in_full(setup, way, choose_plan(setup, way, effort)); };
  const std::vector<Candidate> candidates = candidates_of(setup, setup.recompute.value_or(RecomputeGrain::kStage));
  const Best fastest = fastest_of(setup, candidates);
  RunPrediction result = searched(fastest.candidate.way);
  if (!fits_host(setup, fastest.prediction) || !fits_host(setup, result)) {
    // Recompute by layer needs more host memory, so it is not tried.
    const auto [way, choice] = best_held_by_host(setup, candidates);
    RunPrediction held = predict_in_full(setup, way, choice), longer_search = searched(way);
    if (fits_host(setup, longer_search) && is_better(setup, longer_search, held)) held = std::move(longer_search);
    held.is_held_by_host = way.most_kept_inputs.has_value();
    return fits_host(setup, result) && is_better(setup, result, held) ? result : held;
  }
  if (setup.recompute) return result;
  const std::vector<Candidate> held = held_by_layer(setup, candidates);
  if (held.empty()) return result;
  const Best by_layer = fastest_of(setup, held);
  if (!is_better(setup, by_layer.prediction, fastest.prediction, kAsFast)) return result;
  RunPrediction other = searched(by_layer.candidate.way);
  return is_better(setup, other, result, kAsFast) ? other : result;
}

RunPrediction predict_plan(const TrainingSetup& setup, const Plan& plan) {
  RP_ASSERT(setup.round_microbatches > 0 && setup.rounds_per_step > 0 && setup.recompute);
  const Way way{.rounds = {.microbatches = setup.round_microbatches, .per_step = setup.rounds_per_step},
                .recompute = *setup.recompute};
  const std::vector<LayerCost> costs = costs_of(setup, sequences_of(setup, way.rounds));
  validate_plan(plan, static_cast<int>(costs.size()));
  return predict_in_full(setup, way, {.plan = plan});
}

std::int64_t longest_sequence(const TrainingSetup& setup) {
  constexpr std::int64_t kGrain = 256, kMax = std::int64_t{1} << 16;  // kMax counts multiples of kGrain
  std::int64_t longest = 0, too_long = kMax;
  if (!fits(setup, kGrain)) return 0;
  longest = 1;
  while (too_long - longest > 1) {
    const std::int64_t middle = (longest + too_long) / 2;
    (fits(setup, middle * kGrain) ? longest : too_long) = middle;
  }
  return longest * kGrain;
}

}  // namespace rp
