#include "scheduler/simulation/predicted_times.h"

#include <algorithm>

namespace rp {

namespace {

// Returns the seconds in which the GPU moves the bytes through its memory.
double memory_time(double bytes, const GpuProfile& gpu) {
  return bytes / (gpu.memory_gbs * 1e9 * gpu.memory_efficiency);
}

}  // namespace

double pass_ms(const PassCost& cost, const GpuProfile& gpu, Accumulate accumulate) {
  const double gemm = cost.gemm_flops / (gpu.peak_tflops(accumulate) * 1e12 * gpu.gemm_efficiency);
  const double attention = cost.attention_flops / (gpu.fp32_accumulate_tflops * 1e12 * gpu.attention_efficiency);
  return 1e3 * (gemm + attention + memory_time(cost.elementwise_bytes, gpu));
}

double expansion_ms(const LayerCost& cost, const GpuProfile& gpu) {
  if (cost.expanded_bytes == 0) return 0;
  return 1e3 * memory_time(static_cast<double>(cost.weight_bytes + cost.expanded_bytes), gpu);
}

LayerWork predicted_work(const LayerCost& cost, const GpuProfile& gpu, Accumulate accumulate) {
  return {.forward = pass_ms(cost.forward, gpu, accumulate), .backward = pass_ms(cost.backward, gpu, accumulate)};
}

double copy_ms(double bytes, CopyDirection direction, const GpuProfile& gpu) {
  const double gbs = direction == CopyDirection::kHostToDevice ? gpu.host_to_device_gbs : gpu.device_to_host_gbs;
  return 1e3 * (bytes / (gbs * 1e9) + gpu.copy_latency_us * 1e-6);
}

Workload predicted_workload(const std::vector<LayerCost>& costs, const GpuProfile& gpu, Accumulate accumulate,
                            int task_microbatches) {
  Workload workload;
  std::uint64_t boundary = 0;
  for (const LayerCost& cost : costs) {
    workload.layers.push_back(predicted_work(cost, gpu, accumulate));
    workload.layers.back().forward += expansion_ms(cost, gpu) / task_microbatches;
    boundary = std::max(boundary, cost.output_bytes);
  }
  workload.head = workload.layers.back();
  workload.layers.pop_back();
  const auto bytes = static_cast<double>(boundary);
  workload.hop = copy_ms(bytes, CopyDirection::kDeviceToHost, gpu) + copy_ms(bytes, CopyDirection::kHostToDevice, gpu);
  return workload;
}

}  // namespace rp
