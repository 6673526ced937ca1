#include "scheduler/bound_schedules.h"

#include <algorithm>
#include <numeric>

#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

// The tasks of all stages and microbatches, without an order.
class BoundTasks {
 public:
  BoundTasks(const Workload& workload, const std::vector<int>& stages, bool splits_backward)
      : num_gpus_(workload.num_gpus), num_stages_(static_cast<int>(stages.size())), num_microbatches_(workload.num_microbatches) {
    graph_.hop = workload.hop;
    graph_.order.resize(static_cast<std::size_t>(workload.num_gpus));
    std::vector<LayerWork> works;
    int layer = 0;
    for (const int num_layers : stages) {
      LayerWork& work = works.emplace_back();
      for (int i = 0; i < num_layers; ++i, ++layer) {
        work.forward += workload.layers[static_cast<std::size_t>(layer)].forward;
        work.backward += workload.layers[static_cast<std::size_t>(layer)].backward;
      }
    }
    for (int stage = 0; stage < num_stages_; ++stage) {
      const bool is_last = stage + 1 == num_stages_;
      const double work =
          (works[static_cast<std::size_t>(stage)].forward + (is_last ? workload.head.forward : 0)) * workload.slowness_of(gpu_of(stage));
      for (int m = 0; m < num_microbatches_; ++m) {
        forwards_.push_back(graph_.add({.gpu = gpu_of(stage), .stage = stage, .microbatch = m, .work = work,
                                        .input = stage > 0 ? forward(stage - 1, m) : -1}));
      }
    }
    backwards_.resize(forwards_.size());
    for (int stage = num_stages_; stage-- > 0;) {
      const bool is_last = stage + 1 == num_stages_;
      const LayerWork& of_stage = works[static_cast<std::size_t>(stage)];
      const double backward = of_stage.backward + (is_last ? workload.head.backward : 0);
      const double slowness = workload.slowness_of(gpu_of(stage));
      const double weight_part = splits_backward ? backward / 2 : 0;
      for (int m = 0; m < num_microbatches_; ++m) {
        const int number = graph_.add({.gpu = gpu_of(stage),
                                       .kind = splits_backward ? TaskKind::kInputGradient : TaskKind::kBackward,
                                       .stage = stage,
                                       .microbatch = m,
                                       .work = (of_stage.forward + backward - weight_part) * slowness,
                                       .input = is_last ? forward(stage, m) : this->backward(stage + 1, m),
                                       .other_input = forward(num_stages_ - 1, m),
                                       .recompute = of_stage.forward * slowness});
        backwards_[index(stage, m)] = number;
        if (!splits_backward) continue;
        weights_.resize(forwards_.size());
        weights_[index(stage, m)] = graph_.add({.gpu = gpu_of(stage), .kind = TaskKind::kWeightGradient, .stage = stage,
                                                .microbatch = m, .work = weight_part * slowness, .input = number});
      }
    }
  }

  [[nodiscard]] int gpu_of(int stage) const { return stage % num_gpus_; }
  [[nodiscard]] int forward(int stage, int m) const { return forwards_[index(stage, m)]; }
  [[nodiscard]] int backward(int stage, int m) const { return backwards_[index(stage, m)]; }
  [[nodiscard]] int weight_gradient(int stage, int m) const { return weights_[index(stage, m)]; }
  [[nodiscard]] std::vector<int>& order(int gpu) { return graph_.order[static_cast<std::size_t>(gpu)]; }
  [[nodiscard]] TaskGraph take() { return std::move(graph_); }

 private:
  [[nodiscard]] std::size_t index(int stage, int m) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(num_microbatches_) + static_cast<std::size_t>(m);
  }

  int num_gpus_;
  int num_stages_;
  int num_microbatches_;
  TaskGraph graph_;
  std::vector<int> forwards_, backwards_, weights_;  // by stage and microbatch
};

void order_breadth_first(BoundTasks& tasks, const Workload& workload, int stages_per_gpu, bool reverse) {
  const int num_gpus = workload.num_gpus, num_microbatches = workload.num_microbatches;
  for (int gpu = 0; gpu < num_gpus; ++gpu) {
    for (int i = 0; i < stages_per_gpu; ++i) {
      for (int m = 0; m < num_microbatches; ++m) tasks.order(gpu).push_back(tasks.forward(i * num_gpus + gpu, m));
    }
    for (int i = stages_per_gpu; i-- > 0;) {
      for (int n = 0; n < num_microbatches; ++n) {
        const int m = reverse ? num_microbatches - 1 - n : n;
        tasks.order(gpu).push_back(tasks.backward(i * num_gpus + gpu, m));
      }
    }
  }
}

// Stages before the last one begin with the forwards that fill the pipeline.
void order_1f1b(BoundTasks& tasks, const Workload& workload, bool splits_backward) {
  const int num_microbatches = workload.num_microbatches;
  for (int gpu = 0; gpu < workload.num_gpus; ++gpu) {
    std::vector<int>& order = tasks.order(gpu);
    const int warm_up = std::min(num_microbatches, workload.num_gpus - gpu - 1);
    int num_weights = 0;
    const auto weights = [&] { order.push_back(tasks.weight_gradient(gpu, num_weights++)); };
    for (int m = 0; m < warm_up; ++m) order.push_back(tasks.forward(gpu, m));
    for (int m = 0; m < num_microbatches; ++m) {
      if (warm_up + m < num_microbatches) order.push_back(tasks.forward(gpu, warm_up + m));
      order.push_back(tasks.backward(gpu, m));
      // Later GPUs put off as many weight gradients as they have to wait for at the end.
      if (splits_backward && m >= gpu) weights();
    }
    while (splits_backward && num_weights < num_microbatches) weights();
  }
}

void order_interleaved(BoundTasks& tasks, const Workload& workload, int stages_per_gpu) {
  const int num_gpus = workload.num_gpus;
  const int group = num_gpus * stages_per_gpu;
  const int total = workload.num_microbatches * stages_per_gpu;
  const auto chunk = [&](int n) { return n % group / num_gpus; };
  const auto microbatch = [&](int n) { return n / group * num_gpus + n % num_gpus; };
  for (int gpu = 0; gpu < num_gpus; ++gpu) {
    std::vector<int>& order = tasks.order(gpu);
    const auto forward = [&](int n) { order.push_back(tasks.forward(chunk(n) * num_gpus + gpu, microbatch(n))); };
    const auto backward = [&](int n) {
      order.push_back(tasks.backward((stages_per_gpu - 1 - chunk(n)) * num_gpus + gpu, microbatch(n)));
    };
    const int warm_up = std::min(total, (stages_per_gpu - 1) * num_gpus + 2 * (num_gpus - 1 - gpu));
    for (int n = 0; n < warm_up; ++n) forward(n);
    for (int n = 0; n < total; ++n) {
      if (warm_up + n < total) forward(warm_up + n);
      backward(n);
    }
  }
}

void check(BoundSchedule schedule, const Workload& workload, const std::vector<int>& stages) {
  const auto refuse = [](const std::string& what) { throw Error(ExitCode::kUsage, what); };
  const bool is_looped = schedule == BoundSchedule::kInterleaved || schedule == BoundSchedule::kLoopedBfs;
  const int num_stages = static_cast<int>(stages.size());
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (stages[i] < 0 || (stages[i] == 0 && i + 1 < stages.size())) {
      refuse(cat("stage ", i, " has ", stages[i], " layers; only the last one, which has the head, may have none"));
    }
  }
  if (const int sum = std::accumulate(stages.begin(), stages.end(), 0); sum != workload.num_layers()) {
    refuse(cat("the stages have ", sum, " layers together, the model has ", workload.num_layers()));
  }
  if (is_looped ? num_stages == 0 || num_stages % workload.num_gpus != 0 : num_stages != workload.num_gpus) {
    refuse(cat("there are ", num_stages, " stages; ", is_looped ? "a multiple of " : "", workload.num_gpus, " are needed, for ",
               workload.num_gpus, " GPUs"));
  }
  if (schedule == BoundSchedule::kInterleaved && workload.num_microbatches % workload.num_gpus != 0) {
    refuse(cat("interleaved 1F1B needs a multiple of ", workload.num_gpus, " microbatches, not ", workload.num_microbatches));
  }
}

}  // namespace

TaskGraph bound_schedule(BoundSchedule schedule, const Workload& workload, const std::vector<int>& stages) {
  check(schedule, workload, stages);
  const bool splits_backward = schedule == BoundSchedule::kZbH1;
  BoundTasks tasks(workload, stages, splits_backward);
  const int stages_per_gpu = static_cast<int>(stages.size()) / workload.num_gpus;
  switch (schedule) {
    case BoundSchedule::kGPipe: order_breadth_first(tasks, workload, stages_per_gpu, false); break;
    case BoundSchedule::kLoopedBfs: order_breadth_first(tasks, workload, stages_per_gpu, true); break;
    case BoundSchedule::k1F1B:
    case BoundSchedule::kZbH1: order_1f1b(tasks, workload, splits_backward); break;
    case BoundSchedule::kInterleaved: order_interleaved(tasks, workload, stages_per_gpu); break;
  }
  return tasks.take();
}

}  // namespace rp
