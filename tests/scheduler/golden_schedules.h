// tests/scheduler/golden_schedules.h
// The workloads and cuts of the published simulations (arXiv 2604.27085, artifact), and their
// results.
#pragma once

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/plan.h"
#include "scheduler/workload.h"

namespace rp::test {

struct GoldenModel {
  std::string name;
  Workload workload;          // 8 GPUs, 16 microbatches
  std::vector<int> bound;     // numbers of layers of the stages, for GPipe and 1F1B
  std::vector<int> looped;    // the same for interleaved 1F1B and looped BFS
  std::vector<int> forward;   // the same for RoundPipe; the fused stage is the head alone
  std::vector<int> backward;  // from the deepest stage on
  // ms
  double gpipe = 0, one_f_one_b = 0, interleaved = 0, looped_bfs = 0, roundpipe = 0;
  double busy_per_gpu = 0, period_of_8 = 0, period_of_16 = 0;
};

inline void PrintTo(const GoldenModel& model, std::ostream* out) { *out << model.name; }  // for GoogleTest

inline std::vector<int> repeated(std::vector<std::pair<int, int>> layers_and_times) {
  std::vector<int> list;
  for (const auto& [layers, times] : layers_and_times) list.insert(list.end(), static_cast<std::size_t>(times), layers);
  return list;
}

inline Workload golden_workload(int num_layers, LayerWork layer, LayerWork head, double hop) {
  return {.num_gpus = 8,
          .num_microbatches = 16,
          .round_microbatches = 8,
          .hop = hop,
          .layers = std::vector<LayerWork>(static_cast<std::size_t>(num_layers), layer),
          .head = head,
          .fused_waits = false};
}

inline std::vector<GoldenModel> golden_models() {
  return {{.name = "1.7b",
           .workload = golden_workload(28, {7.429, 15.831}, {22.0655, 43.707}, 1.6),
           .bound = {3, 3, 4, 4, 4, 4, 4, 2},
           .looped = repeated({{1, 18}, {2, 5}, {0, 1}}),
           .forward = repeated({{7, 4}}),
           .backward = repeated({{3, 8}, {2, 2}}),
           .gpipe = 2896.9170,
           .one_f_one_b = 2854.7220,
           .interleaved = 2560.8020,
           .looped_bfs = 2467.2710,
           .roundpipe = 2286.0170,
           .busy_per_gpu = 1850.13,
           .period_of_8 = 1937.2180,
           .period_of_16 = 1862.5365},
          {.name = "8b",
           .workload = golden_workload(32, {18.50370313, 41.20659375}, {37.2255, 74.501}, 3.2),
           .bound = repeated({{4, 8}}),
           .looped = repeated({{1, 32}}),
           .forward = repeated({{5, 4}, {6, 2}}),
           .backward = repeated({{2, 16}}),
           .gpipe = 9028.1120,
           .one_f_one_b = 9028.1120,
           .interleaved = 7539.2180,
           .looped_bfs = 7385.6180,
           .roundpipe = 6100.5450,
           .busy_per_gpu = 5229.15,
           .period_of_8 = 5347.9798,
           .period_of_16 = 5252.2613},
          {.name = "32b",
           .workload = golden_workload(64, {40.5610625, 91.17429688}, {54.928, 108.294}, 4.0),
           .bound = repeated({{8, 8}}),
           .looped = repeated({{1, 64}}),
           .forward = repeated({{2, 2}, {3, 20}}),
           .backward = repeated({{1, 64}}),
           .gpipe = 34370.0936,
           .one_f_one_b = 34370.0936,
           .interleaved = 26375.5690,
           .looped_bfs = 25927.5690,
           .roundpipe = 23978.8338,
           .busy_per_gpu = 22380.39,
           .period_of_8 = 23180.1736,
           .period_of_16 = 22530.5183}};
}

inline Plan golden_plan(const GoldenModel& model) {
  Plan plan;
  int layer = 0;
  for (const int count : model.forward) {
    plan.forward.push_back({layer, layer + count});
    layer += count;
  }
  plan.fused_start = layer;
  for (const int count : model.backward) {
    plan.backward.push_back({layer - count, layer});
    layer -= count;
  }
  return plan;
}

}  // namespace rp::test
