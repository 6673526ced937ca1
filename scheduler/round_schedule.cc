#include "scheduler/round_schedule.h"

#include <algorithm>

#include "common/check.h"

namespace rp {

namespace {

LayerWork sum(const Workload& workload, const LayerRange& range) {
  LayerWork total;
  for (int layer = range.first; layer < range.end; ++layer) {
    const LayerWork& work = layer < workload.num_layers() ? workload.layers[static_cast<std::size_t>(layer)] : workload.head;
    total.forward += work.forward;
    total.backward += work.backward;
  }
  return total;
}

}  // namespace

std::vector<StageWork> stage_works(const Workload& workload, const Plan& plan) {
  const int num_layers = workload.num_layers() + 1;
  RP_ASSERT(plan.fused_start < num_layers);
  std::vector<StageWork> stages;
  for (const LayerRange& range : plan.forward) {
    stages.push_back({.kind = TaskKind::kForward, .layers = range, .work = sum(workload, range).forward});
  }
  const LayerRange fused{plan.fused_start, num_layers};
  const LayerWork work = sum(workload, fused);
  stages.push_back({.kind = TaskKind::kFused,
                    .layers = fused,
                    .lead = workload.fused_waits ? 0 : work.forward,
                    .work = workload.fused_waits ? work.forward + work.backward : work.backward});
  for (const LayerRange& range : plan.backward) {
    const LayerWork backward = sum(workload, range);
    stages.push_back({.kind = TaskKind::kBackward, .layers = range, .lead = backward.forward, .work = backward.backward});
  }
  return stages;
}

double busy_ms(const Workload& workload, const std::vector<StageWork>& stages) {
  double busy = 0;
  for (const StageWork& stage : stages) busy += stage.lead + stage.work;
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
      for (std::size_t m = 0; m < inputs.size(); ++m) {
        inputs[m] = graph.append({.gpu = slot % workload.num_gpus,
                                  .kind = stages[stage].kind,
                                  .stage = static_cast<int>(stage),
                                  .microbatch = first + static_cast<int>(m),
                                  .lead = stages[stage].lead,
                                  .work = stages[stage].work,
                                  .input = inputs[m]});
      }
    }
  }
  return graph;
}

double lower_bound_ms(const Workload& workload, const std::vector<StageWork>& stages) {
  double chain = stages.empty() ? 0 : stages.front().lead;
  for (const StageWork& stage : stages) chain += stage.work;
  if (workload.num_gpus > 1) chain += workload.hop * static_cast<double>(stages.size() - 1);
  return std::max(busy_ms(workload, stages) / workload.num_gpus, chain);
}

RoundSimulator::RoundSimulator(const Workload& workload)
    : hop_(workload.num_gpus > 1 ? workload.hop : 0),
      num_rounds_(workload.num_microbatches / workload.round_microbatches),
      free_(static_cast<std::size_t>(workload.num_gpus)),
      arrival_(static_cast<std::size_t>(workload.round_microbatches)) {
  RP_ASSERT(num_rounds_ * workload.round_microbatches == workload.num_microbatches);
  for (auto* updates : {&before_, &last_, &present_}) updates->resize(static_cast<std::size_t>(workload.num_layers()) + 1);
}

void RoundSimulator::restart() {
  next_gpu_ = 0;
  for (auto* times : {&free_, &before_, &last_, &present_}) std::fill(times->begin(), times->end(), 0.0);
}

double RoundSimulator::end() const { return *std::max_element(free_.begin(), free_.end()); }

// `ready(layers)`: when a slot may begin; `done(stage, end)`: of each slot with a backward.
template <typename Ready, typename Done>
void RoundSimulator::step(const std::vector<StageWork>& stages, const Ready& ready, const Done& done) {
  for (int round = 0; round < num_rounds_; ++round) {
    std::fill(arrival_.begin(), arrival_.end(), 0.0);
    for (const StageWork& stage : stages) {
      double now = std::max(free_[next_gpu_], ready(stage.layers));
      for (double& arrival : arrival_) {
        now = std::max(now + stage.lead, arrival) + stage.work;
        arrival = now + hop_;
      }
      free_[next_gpu_] = now;
      next_gpu_ = next_gpu_ + 1 == free_.size() ? 0 : next_gpu_ + 1;
      if (stage.kind != TaskKind::kForward) done(stage, now);
    }
  }
}

double RoundSimulator::makespan(const std::vector<StageWork>& stages) {
  restart();
  step(stages, [](const LayerRange&) { return 0.0; }, [](const StageWork&, double) {});
  return end();
}

double RoundSimulator::period(const std::vector<StageWork>& stages, int from, int to) {
  RP_ASSERT(0 < from && from < to);
  restart();
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
    if (number == from) end_of_from = end();
  }
  return (end() - end_of_from) / (to - from);
}

}  // namespace rp
