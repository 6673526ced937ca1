// scheduler/simulator.h
// Computes when the tasks of a schedule run. Each GPU runs its tasks one after the other in a given
// order, each as soon as its inputs have arrived. Virtual time; pure functions.
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
  double lead = 0;     // ms at its beginning that need no input, such as a recompute before the gradient has arrived
  double work = 0;     // ms after the lead
  // Tasks whose output this task needs; -1: none. From another GPU the output arrives a hop later.
  int input = -1;
  int other_input = -1;
  // For drawing only.
  double recompute = 0;  // ms at its beginning, part of `lead` and `work`
  int step = 0;          // in a chain of steps, from 1
  // Tasks that must have ended before this task begins, including its `lead`, on any GPU and
  // without a hop.
  std::vector<int> after{};
};

struct TaskGraph {
  std::vector<SimulatedTask> tasks;
  std::vector<std::vector<int>> order;  // task numbers by GPU; each task once
  double hop = 0;                       // ms

  // Adds a task as the last one of its GPU. Returns its number.
  int append(const SimulatedTask& task);
  // Adds a task without a place in the order. Returns its number.
  int add(const SimulatedTask& task);
};

struct Timeline {
  std::vector<double> start;  // ms, by task
  std::vector<double> end;
  double makespan = 0;  // ms
  double busy = 0;      // ms, all GPUs together
};

// Simulates the graph. A task starts at max(its GPU is free and all of `after` have ended + lead,
// its inputs have arrived) - lead. Throws rp::Error (kUsage) if the orders wait for each other.
[[nodiscard]] Timeline simulate(const TaskGraph& graph);

}  // namespace rp
