// scheduler/simulation/simulated_gpu.h
// Tracks how far a worker is in a simulated run: the state of the four threads of worker/worker.h,
// and what they pass to each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "common/run_depth.h"
#include "scheduler/simulation/run_record.h"

namespace rp {

struct LayerGradient {
  std::int64_t slot = 0;
  int layer = 0;
  bool is_last = false;  // the last one of its task
};

// The positions of a worker's threads. Tasks are counted by GPU, microbatches over all its tasks.
struct SimulatedGpu {
  // Stage runner.
  std::int64_t task = 0;
  int microbatch = 0;  // of the task
  bool is_computing = false;
  bool has_recomputed = false;
  bool has_gradient_buffer = false;
  double compute_start = 0;
  double idle_since = 0;
  std::int64_t num_computed = 0;
  int free_gradient_buffers = kGradientBuffers;
  // WeightUploader.
  std::int64_t fed_task = 0;
  int fed_layer = -1;              // the next layer; -1: the task has no stage buffer yet
  Missing feeding;                 // what the weights of fed_task have waited for so far
  std::deque<Missing> fed;         // what the weights waited for of each task whose upload is under way
  std::int64_t weights_there = 0;  // number of tasks
  // InputUploader.
  std::int64_t fetch_task = 0;
  int fetch_microbatch = 0;    // of the task
  std::size_t fetch_read = 0;  // index into the reads of the microbatch
  std::int64_t num_fetched = 0;
  std::int64_t recomputable = 0;  // number of microbatches whose inputs except the gradient are there
  std::int64_t complete = 0;
  // GradientDownloader: gradients whose buffers in the store are not free yet.
  std::deque<LayerGradient> gradients;
  Missing missing;
};

}  // namespace rp
