#include "scheduler/bound/bound_orders.h"

#include <algorithm>

namespace rp {

BoundOrders::BoundOrders(BoundSchedule schedule, int num_gpus, int num_stages, int num_microbatches)
    : num_gpus_(num_gpus),
      num_stages_(num_stages),
      num_microbatches_(num_microbatches),
      splits_backward_(schedule == BoundSchedule::kZbH1),
      orders_(num_gpus) {
  for (std::vector<int>& each : orders_) each.reserve(num_tasks() / num_gpus);
  switch (schedule) {
    case BoundSchedule::kGPipe: order_breadth_first(false); break;
    case BoundSchedule::kLoopedBfs: order_breadth_first(true); break;
    case BoundSchedule::k1F1B:
    case BoundSchedule::kZbH1: order_1f1b(); break;
    case BoundSchedule::kInterleaved: order_interleaved(); break;
  }
}

void BoundOrders::order_breadth_first(bool reverse) {
  const int stages_per_gpu = num_stages_ / num_gpus_;
  for (int gpu = 0; gpu < num_gpus_; ++gpu) {
    for (int i = 0; i < stages_per_gpu; ++i) {
      for (int m = 0; m < num_microbatches_; ++m) order(gpu).push_back(forward(i * num_gpus_ + gpu, m));
    }
    for (int i = stages_per_gpu; i-- > 0;) {
      for (int n = 0; n < num_microbatches_; ++n) {
        const int m = reverse ? num_microbatches_ - 1 - n : n;
        order(gpu).push_back(backward(i * num_gpus_ + gpu, m));
      }
    }
  }
}

// All stages except the last begin with the forwards that fill the pipeline.
void BoundOrders::order_1f1b() {
  for (int gpu = 0; gpu < num_gpus_; ++gpu) {
    std::vector<int>& tasks = order(gpu);
    const int warm_up = std::min(num_microbatches_, num_gpus_ - gpu - 1);
    int num_weights = 0;
    const auto weights = [&] { tasks.push_back(weight_gradient(gpu, num_weights++)); };
    for (int m = 0; m < warm_up; ++m) tasks.push_back(forward(gpu, m));
    for (int m = 0; m < num_microbatches_; ++m) {
      if (warm_up + m < num_microbatches_) tasks.push_back(forward(gpu, warm_up + m));
      tasks.push_back(backward(gpu, m));
      // Later GPUs postpone as many weight gradients as would otherwise be idle time at the end.
      if (splits_backward_ && m >= gpu) weights();
    }
    while (splits_backward_ && num_weights < num_microbatches_) weights();
  }
}

void BoundOrders::order_interleaved() {
  const int stages_per_gpu = num_stages_ / num_gpus_;
  const int group = num_gpus_ * stages_per_gpu;
  const int total = num_microbatches_ * stages_per_gpu;
  const auto chunk = [&](int n) { return n % group / num_gpus_; };
  const auto microbatch = [&](int n) { return n / group * num_gpus_ + n % num_gpus_; };
  for (int gpu = 0; gpu < num_gpus_; ++gpu) {
    std::vector<int>& tasks = order(gpu);
    const auto add_forward = [&](int n) { tasks.push_back(forward(chunk(n) * num_gpus_ + gpu, microbatch(n))); };
    const auto add_backward = [&](int n) {
      tasks.push_back(backward((stages_per_gpu - 1 - chunk(n)) * num_gpus_ + gpu, microbatch(n)));
    };
    const int warm_up = std::min(total, (stages_per_gpu - 1) * num_gpus_ + 2 * (num_gpus_ - 1 - gpu));
    for (int n = 0; n < warm_up; ++n) add_forward(n);
    for (int n = 0; n < total; ++n) {
      if (warm_up + n < total) add_forward(warm_up + n);
      add_backward(n);
    }
  }
}

std::vector<BoundWork> bound_works(const Workload& workload, const std::vector<int>& stages, bool splits_backward) {
  std::vector<BoundWork> works;
  works.reserve(stages.size());
  std::size_t layer = 0;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    LayerWork sum;
    for (int i = 0; i < stages[stage]; ++i, ++layer) {
      sum.forward += workload.layers[layer].forward;
      sum.backward += workload.layers[layer].backward;
    }
    const bool is_last = stage + 1 == stages.size();
    const double slowness = workload.slowness_of(static_cast<int>(stage) % workload.num_gpus);
    const double backward = sum.backward + (is_last ? workload.head.backward : 0);
    const double weight = splits_backward ? backward / 2 : 0;
    works.push_back({.forward = (sum.forward + (is_last ? workload.head.forward : 0)) * slowness,
                     .backward = (sum.forward + backward - weight) * slowness,
                     .weight = weight * slowness,
                     .recompute = sum.forward * slowness});
  }
  return works;
}

}  // namespace rp
