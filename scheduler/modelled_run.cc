#include "scheduler/modelled_run.h"

#include "scheduler/modelled_times.h"

namespace rp {

namespace {

constexpr double kBytesPerMs = 1e6;  // of a GB/s

Machine machine_of(const ModelledRun& run) {
  const GpuProfile& gpu = run.gpu;
  const ServerProfile& server = run.server;
  return {.upload = gpu.host_to_device_gbs * kBytesPerMs,
          .download = gpu.device_to_host_gbs * kBytesPerMs,
          .both_directions = 2 * gpu.both_directions_gbs * kBytesPerMs,
          .weights_upload = run.pinned_weights ? kUnlimited : server.pageable_upload_gbs * kBytesPerMs,
          .weights_traffic = run.pinned_weights ? 1 : server.pageable_bytes_per_byte,
          .copy_latency = gpu.copy_latency_us / 1000,
          .gpus_per_root = static_cast<int>(server.gpus_per_root),
          .root_upload = server.root_gbs * kBytesPerMs,
          .root_download = server.root_gbs * kBytesPerMs,
          .host_memory = server.memory_gbs * kBytesPerMs,
          .updates = server.optimizer_gbs * kBytesPerMs};
}

// What an update and a sum move through host memory (docs/optimizers.md): a 16-bit gradient, and master, two moments and working
// copy; with several rounds in a step their fp32 sum besides.
LayerBytes bytes_of(const LayerCost& cost, int rounds_per_step) {
  constexpr double kUpdate = 28, kReadSum = 4, kSum = 2 + 4 + 4;
  const auto trained = static_cast<double>(cost.trained_elements), gradients = static_cast<double>(cost.gradient_elements);
  return {.weights = static_cast<double>(cost.weight_bytes),
          .gradient = static_cast<double>(cost.gradient_bytes),
          .update = kUpdate * trained + (rounds_per_step > 1 ? kReadSum * gradients : 0),
          .sum = kSum * gradients,
          .input = static_cast<double>(cost.input_bytes)};
}

}  // namespace

RunWork modelled_run(const std::vector<LayerCost>& costs, const ModelledRun& run) {
  RunWork work{.workload = modelled_workload(costs, run.gpu, run.accumulate), .asynchronous = run.asynchronous,
               .machine = machine_of(run)};
  work.workload.num_gpus = run.num_gpus;
  work.workload.round_microbatches = run.round_microbatches;
  work.workload.num_microbatches = run.round_microbatches * run.rounds_per_step;
  for (const LayerCost& cost : costs) work.layers.push_back(bytes_of(cost, run.rounds_per_step));
  return work;
}

}  // namespace rp
