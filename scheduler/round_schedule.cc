#include "scheduler/round_schedule.h"

#include <algorithm>

#include "common/check.h"

namespace rp {

StageSums::StageSums(const Workload& workload) : fused_waits_(workload.fused_waits), forward_(1), backward_(1) {
  for (int layer = 0; layer <= workload.num_layers(); ++layer) {
    const LayerWork& work = layer < workload.num_layers() ? workload.layers[static_cast<std::size_t>(layer)] : workload.head;
    forward_.push_back(forward_.back() + work.forward);
    backward_.push_back(backward_.back() + work.forward + work.backward);
  }
}

std::vector<StageWork> stage_works(const Workload& workload, const Plan& plan) {
  RP_ASSERT(plan.fused_start <= workload.num_layers());
  const StageSums sums(workload);
  std::vector<StageWork> stages;
  for (const LayerRange& range : plan.forward) stages.push_back(sums.stage(TaskKind::kForward, range));
  stages.push_back(sums.stage(TaskKind::kFused, {plan.fused_start, workload.num_layers() + 1}));
  for (const LayerRange& range : plan.backward) stages.push_back(sums.stage(TaskKind::kBackward, range));
  return stages;
}

double busy_ms(const Workload& workload, const std::vector<StageWork>& stages) {
  double busy = 0;
  for (const StageWork& stage : stages) busy += stage.time.lead + stage.time.work;
  return busy * workload.num_microbatches;
}

TaskGraph round_schedule(const Workload& workload, const std::vector<StageWork>& stages) {
  TaskGraph graph;
  graph.hop = workload.hop;
  graph.order.resize(static_cast<std::size_t>(workload.num_gpus));
  int slot = 0;
  for (int first = 0; first < workload.num_microbatches; first += workload.round_microbatches) {
    std::vector<int> inputs(static_cast<std::size_t>(workload.round_microbatches), -1);
    for (std::size_t stage = 0; stage < stages.size(); ++stage, ++slot) {
      const int gpu = slot % workload.num_gpus;
      for (std::size_t m = 0; m < inputs.size(); ++m) {
        inputs[m] = graph.append({.gpu = gpu,
                                  .kind = stages[stage].kind,
                                  .stage = static_cast<int>(stage),
                                  .microbatch = first + static_cast<int>(m),
                                  .lead = stages[stage].time.lead * workload.slowness_of(gpu),
                                  .work = stages[stage].time.work * workload.slowness_of(gpu),
                                  .input = inputs[m]});
      }
    }
  }
  return graph;
}

double busy_ms_per_gpu(const Workload& workload, const std::vector<StageWork>& stages) {
  double speed = 0;
  for (int gpu = 0; gpu < workload.num_gpus; ++gpu) speed += 1 / workload.slowness_of(gpu);
  return busy_ms(workload, stages) / speed;
}

double lower_bound_ms(const Workload& workload, const std::vector<StageWork>& stages, bool asynchronous) {
  double chain = stages.empty() ? 0 : stages.front().time.lead;
  for (const StageWork& stage : stages) chain += stage.time.work;
  double least_slowness = workload.slowness_of(0);
  for (int gpu = 1; gpu < workload.num_gpus; ++gpu) least_slowness = std::min(least_slowness, workload.slowness_of(gpu));
  chain *= least_slowness;
  if (workload.num_gpus > 1) chain += workload.hop * static_cast<double>(stages.size() - 1);
  return std::max(busy_ms_per_gpu(workload, stages), asynchronous ? chain / 2 : chain);
}

RoundSimulator::RoundSimulator(const Workload& workload)
    : clock_(workload.num_gpus, workload.round_microbatches, workload.num_gpus > 1 ? workload.hop : 0, workload.slowness),
      num_gpus_(workload.num_gpus),
      num_rounds_(workload.num_microbatches / workload.round_microbatches) {
  RP_ASSERT(num_rounds_ * workload.round_microbatches == workload.num_microbatches);
  for (auto* updates : {&before_, &last_, &present_}) updates->resize(static_cast<std::size_t>(workload.num_layers()) + 1);
}

// `ready(layers)`: when a slot may begin; `done(stage, end)`: of each slot with a backward.
template <typename Ready, typename Done>
void RoundSimulator::step(const std::vector<StageWork>& stages, const Ready& ready, const Done& done) {
  for (int round = 0; round < num_rounds_; ++round) {
    clock_.begin_round();
    for (const StageWork& stage : stages) {
      const double end = clock_.run(stage.time, ready(stage.layers));
      if (stage.kind != TaskKind::kForward) done(stage, end);
    }
  }
}

double RoundSimulator::makespan(const std::vector<StageWork>& stages) {
  clock_.restart();
  step(stages, [](const LayerRange&) { return 0.0; }, [](const StageWork&, double) {});
  return clock_.end();
}

double RoundSimulator::period(const std::vector<StageWork>& stages) {
  constexpr int kFirst = 40, kLeast = 160;
  return period(stages, kFirst, kFirst + (kLeast + num_gpus_ - 1) / num_gpus_ * num_gpus_);
}

double RoundSimulator::period(const std::vector<StageWork>& stages, int from, int to) {
  RP_ASSERT(0 < from && from < to);
  clock_.restart();
  for (auto* updates : {&before_, &last_, &present_}) std::fill(updates->begin(), updates->end(), 0.0);
  const auto ready = [this](const LayerRange& layers) {
    return *std::max_element(before_.begin() + layers.first, before_.begin() + layers.end);
  };
  const auto done = [this](const StageWork& stage, double end) {
    std::fill(present_.begin() + stage.layers.first, present_.begin() + stage.layers.end, end);
  };
  double end_of_from = 0;
  for (int number = 1; number <= to; ++number) {
    step(stages, ready, done);
    before_.swap(last_);
    last_.swap(present_);
    if (number == from) end_of_from = clock_.end();
  }
  return (clock_.end() - end_of_from) / (to - from);
}

}  // namespace rp
