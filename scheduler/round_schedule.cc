#include "scheduler/round_schedule.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/run_order.h"

namespace rp {

StageSums::StageSums(const Workload& workload)
    : fused_waits_(workload.fused_waits),
      recompute_(workload.recompute),
      first_trained_layer_(workload.first_trained_layer),
      forward_(1),
      backward_(1) {
  for (int layer = 0; layer <= workload.num_layers(); ++layer) {
    const LayerWork& work = layer < workload.num_layers() ? workload.layers[layer] : workload.head;
    forward_.push_back(forward_.back() + work.forward);
    backward_.push_back(backward_.back() + work.forward + (layer < first_trained_layer_ ? 0 : work.backward));
  }
}

namespace {

TaskKind task_kind(Phase phase) {
  switch (phase) {
    case Phase::kForward: return TaskKind::kForward;
    case Phase::kFused: return TaskKind::kFused;
    case Phase::kBackward: break;
  }
  return TaskKind::kBackward;
}

}  // namespace

std::vector<StageWork> stage_works(const Workload& workload, const Plan& plan) {
  RP_ASSERT(plan.fused_start <= workload.num_layers());
  const StageSums sums(workload);
  std::vector<StageWork> stages;
  for (const PlanStage& stage : stages_of(plan, workload.num_layers() + 1, workload.first_trained_layer)) {
    stages.push_back(sums.stage(task_kind(stage.phase), stage.layers));
  }
  return stages;
}

double busy_ms(const Workload& workload, const std::vector<StageWork>& stages) {
  double busy = 0;
  for (const StageWork& stage : stages) busy += stage.time.lead + stage.time.work;
  return busy * workload.num_microbatches;
}

namespace {

// Adds steps one by one, each after the tasks of the previous step.
class Chain {
 public:
  Chain(const Workload& workload, const std::vector<StageWork>& stages) : workload_(workload), stages_(stages) {
    graph_.hop = workload.hop;
    graph_.order.resize(workload.num_gpus);
    for (const StageWork& stage : stages) updating_stages_.push_back(updating_stages_of(stage.layers));
  }

  void reserve(int num_steps) {
    graph_.tasks.reserve(stages_.size() * static_cast<std::size_t>(workload_.num_microbatches) *
                         static_cast<std::size_t>(num_steps));
  }

  void add_step() {
    std::vector<int>& ends = ends_.emplace_back(stages_.size(), -1);
    for (int first = 0; first < workload_.num_microbatches; first += workload_.round_microbatches) {
      std::vector<int> inputs(static_cast<std::size_t>(workload_.round_microbatches), -1);
      for (std::size_t stage = 0; stage < stages_.size(); ++stage, ++slot_) {
        for (std::size_t m = 0; m < inputs.size(); ++m) {
          SimulatedTask task = task_of(stage);
          task.microbatch = first + static_cast<int>(m);
          task.input = inputs[m];
          if (m == 0) task.after = updates_of(stage);
          inputs[m] = graph_.append(task);
        }
        ends[stage] = inputs.back();
      }
    }
  }
  [[nodiscard]] TaskGraph take() { return std::move(graph_); }

 private:
  [[nodiscard]] SimulatedTask task_of(std::size_t stage) const {
    const int gpu = worker_of_slot(static_cast<std::uint64_t>(slot_), workload_.num_gpus);
    const double slowness = workload_.slowness_of(gpu);
    const StageWork& work = stages_[stage];
    return {.gpu = gpu,
            .kind = work.kind,
            .stage = static_cast<int>(stage),
            .lead = work.time.lead * slowness,
            .work = work.time.work * slowness,
            .recompute = work.kind == TaskKind::kBackward ? work.time.lead * slowness : 0,
            .step = static_cast<int>(ends_.size())};
  }
  // Returns the last tasks of the step before the last that update the layers of this stage.
  [[nodiscard]] std::vector<int> updates_of(std::size_t stage) const {
    std::vector<int> tasks;
    if (ends_.size() < 3) return tasks;
    const std::vector<int>& ends = ends_[ends_.size() - 3];
    for (const std::size_t other : updating_stages_[stage]) tasks.push_back(ends[other]);
    return tasks;
  }
  [[nodiscard]] std::vector<std::size_t> updating_stages_of(const LayerRange& layers) const {
    std::vector<std::size_t> updating;
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      LayerRange other = stages_[stage].layers;
      other.first = std::max(other.first, workload_.first_trained_layer);  // layers below are not updated
      const LayerRange both{std::max(layers.first, other.first), std::min(layers.end, other.end)};
      if (stages_[stage].kind == TaskKind::kForward || both.end <= both.first) continue;
      updating.push_back(stage);
    }
    return updating;
  }

  const Workload& workload_;
  const std::vector<StageWork>& stages_;
  TaskGraph graph_;
  int slot_ = 0;
  std::vector<std::vector<std::size_t>> updating_stages_;  // by stage: the stages that update its layers
  std::vector<std::vector<int>> ends_;                     // by step and stage: the last task
};

}  // namespace

TaskGraph chained_schedule(const Workload& workload, const std::vector<StageWork>& stages, int num_steps) {
  Chain chain(workload, stages);
  chain.reserve(num_steps);
  for (int step = 0; step < num_steps; ++step) chain.add_step();
  return chain.take();
}

double busy_ms_per_gpu(const Workload& workload, const std::vector<StageWork>& stages) {
  double speed = 0;
  for (int gpu = 0; gpu < workload.num_gpus; ++gpu) speed += 1 / workload.slowness_of(gpu);
  return busy_ms(workload, stages) / speed;
}

double lower_bound_ms(const Workload& workload, const std::vector<StageWork>& stages, bool asynchronous) {
  const auto waits = [&](const StageWork& stage) {
    return !asynchronous || stage.layers.end > workload.first_trained_layer;
  };
  const auto first = std::find_if(stages.begin(), stages.end(), waits);
  double chain = first == stages.end() ? 0 : first->time.lead;
  for (auto stage = first; stage != stages.end(); ++stage) chain += stage->time.work;
  double least_slowness = workload.slowness_of(0);
  for (int gpu = 1; gpu < workload.num_gpus; ++gpu)
    least_slowness = std::min(least_slowness, workload.slowness_of(gpu));
  chain *= least_slowness;
  if (workload.num_gpus > 1 && first != stages.end())
    chain += workload.hop * static_cast<double>(stages.end() - first - 1);
  return std::max(busy_ms_per_gpu(workload, stages), asynchronous ? chain / 2 : chain);
}

RoundSimulator::RoundSimulator(const Workload& workload)
    : clock_(workload.num_gpus, workload.round_microbatches, workload.num_gpus > 1 ? workload.hop : 0,
             workload.slowness),
      num_gpus_(workload.num_gpus),
      num_rounds_(workload.num_microbatches / workload.round_microbatches),
      first_trained_layer_(workload.first_trained_layer) {
  RP_ASSERT(num_rounds_ * workload.round_microbatches == workload.num_microbatches);
  for (auto* updates : {&before_, &last_, &present_})
    updates->resize(static_cast<std::size_t>(workload.num_layers()) + 1);
}

// `ready(layers)`: returns when a slot may begin. `done(round, stage, end)`: is called for each slot
// with a backward.
template <typename Ready, typename Done>
void RoundSimulator::step(const std::vector<StageWork>& stages, const Ready& ready, const Done& done) {
  for (int round = 0; round < num_rounds_; ++round) {
    clock_.begin_round();
    for (const StageWork& stage : stages) {
      const double end = clock_.run(stage.time, ready(stage.layers));
      if (stage.kind != TaskKind::kForward) done(round, stage, end);
    }
  }
}

double RoundSimulator::ready(const LayerRange& layers) const {
  return *std::max_element(before_.begin() + layers.first, before_.begin() + layers.end);
}

double RoundSimulator::makespan(const std::vector<StageWork>& stages) {
  clock_.restart();
  step(
      stages, [](const LayerRange&) { return 0.0; }, [](int, const StageWork&, double) {});
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
  const auto done = [this](int, const StageWork& stage, double end) {
    const int first = trained_part(stage.layers, first_trained_layer_).first;
    std::fill(present_.begin() + first, present_.begin() + stage.layers.end, end);
  };
  double end_of_from = 0;
  for (int number = 1; number <= to; ++number) {
    step(
        stages, [this](const LayerRange& layers) { return ready(layers); }, done);
    before_.swap(last_);
    last_.swap(present_);
    if (number == from) end_of_from = clock_.end();
  }
  return (clock_.end() - end_of_from) / (to - from);
}

double RoundSimulator::period(const std::vector<StageWork>& stages, NetworkClock& network, int from, int to) {
  RP_ASSERT(0 < from && from < to);
  clock_.restart();
  network.restart();
  std::fill(before_.begin(), before_.end(), 0.0);
  double committed = 0;  // slots are committed in their order
  const auto done = [&](int round, const StageWork& stage, double end) {
    committed = std::max(committed, end);
    network.commit(stage.layers, committed, round + 1 == num_rounds_);
  };
  double end_of_from = 0;
  for (int number = 1; number <= to; ++number) {
    step(
        stages, [this](const LayerRange& layers) { return ready(layers); }, done);
    before_ = network.end_step();
    if (number == from) end_of_from = clock_.end();
  }
  return (clock_.end() - end_of_from) / (to - from);
}

}  // namespace rp
