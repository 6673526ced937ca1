// scheduler/simulator.h
// When the tasks of a schedule run: each GPU runs its tasks one after the other, in an order that is given, each as
// soon as what it depends on is there. Virtual time; pure functions.
#pragma once

#include <cstdint>
#include <vector>

namespace rp {

enum class TaskKind : std::uint8_t { kForward, kFused, kBackward, kInputGradient, kWeightGradient };

// One stage of one microbatch.
struct SimulatedTask {
  int gpu = 0;
  TaskKind kind = TaskKind::kForward;
  int stage = 0;
  int microbatch = 0;  // of the step
  double lead = 0;     // ms at its beginning that need no input, as a recompute before its gradient is there
  double work = 0;     // ms after that
  // Tasks whose output it needs, -1: none. From another GPU it arrives a hop later.
  int input = -1;
  int other_input = -1;
  // For what is drawn.
  double recompute = 0;  // ms at its beginning, of `lead` and `work`
  int step = 0;          // of a chain of steps, from 1
  // Tasks that have to be over before it begins, its `lead` too, wherever they ran.
  std::vector<int> after{};
};

struct TaskGraph {
  std::vector<SimulatedTask> tasks;
  std::vector<std::vector<int>> order;  // of tasks, by GPU; each task once
  double hop = 0;                       // ms

  // Adds a task behind the others of its GPU. Returns its number.
  int append(const SimulatedTask& task);
  // Adds a task without a place in the order.
  int add(const SimulatedTask& task);
};

struct Timeline {
  std::vector<double> start;  // ms, by task
  std::vector<double> end;
  double makespan = 0;  // ms
  double busy = 0;      // ms, of all GPUs together

  // The share of the GPUs' time in which they do not compute.
  [[nodiscard]] double bubble(int num_gpus) const { return 1 - busy / (num_gpus * makespan); }
};

// A task starts at max(its GPU is free and `after` is over + lead, its inputs are there) - lead. Throws rp::Error
// (kUsage) if the orders wait for each other.
[[nodiscard]] Timeline simulate(const TaskGraph& graph);

}  // namespace rp
