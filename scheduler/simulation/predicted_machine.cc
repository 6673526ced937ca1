#include "scheduler/simulation/predicted_machine.h"

#include <algorithm>

namespace rp {
namespace {

constexpr double kFp32 = 4;
constexpr double kBytesPerMs = 1e6;  // of 1 GB/s

}  // namespace

Machine predicted_machine(const GpuProfile& gpu, const ServerProfile& server, bool pinned) {
  Machine machine;
  machine.upload = gpu.host_to_device_gbs * kBytesPerMs;
  machine.download = gpu.device_to_host_gbs * kBytesPerMs;
  machine.both_directions = 2 * gpu.both_directions_gbs * kBytesPerMs;
  machine.weights_upload = pinned ? machine.upload : std::min(machine.upload, server.pageable_upload_gbs * kBytesPerMs);
  machine.weights_traffic = pinned ? 1 : server.pageable_bytes_per_byte;
  machine.copy_latency = gpu.copy_latency_us * 1e-3;
  machine.gpus_per_root = static_cast<int>(server.gpus_per_root);
  machine.root_upload = machine.root_download = server.root_gbs * kBytesPerMs;
  machine.host_memory = server.memory_gbs * kBytesPerMs;
  machine.updates = server.optimizer_gbs * kBytesPerMs;
  return machine;
}

RunNodes predicted_nodes(const NetworkProfile& network, int num_nodes, int rounds_per_step) {
  return {.num_nodes = num_nodes,
          .rounds_per_step = rounds_per_step,
          .network = network.gbs * kBytesPerMs,
          .network_latency = network.latency_us * 1e-3};
}

// As much is sent as received, or more: no node has more rounds than the one that is simulated.
PlanNetwork plan_network(const std::vector<LayerBytes>& layers, const RunNodes& nodes) {
  PlanNetwork network;
  if (nodes.num_nodes == 1 || nodes.network == kUnlimited) return network;
  const double ms_of_byte = (nodes.num_nodes - 1.0) / nodes.num_nodes / nodes.network;
  for (const LayerBytes& layer : layers)
    network.layers.push_back({.gradient = layer.gradient * ms_of_byte, .weights = layer.updated * ms_of_byte});
  network.latency = nodes.network_latency;
  return network;
}

std::vector<LayerBytes> predicted_bytes(const std::vector<LayerCost>& costs, const HostSettings& settings) {
  std::vector<LayerBytes> layers;
  const auto element = static_cast<double>(settings.element_bytes);
  const bool has_sums = settings.rounds_per_step > 1;
  // Master and moments are read and written; the working copy is written, unless it is the master
  // itself.
  const double update = 2 * kFp32 * (1 + settings.num_moments) + (element < kFp32 ? element : 0);
  for (const LayerCost& cost : costs) {
    const auto gradients = static_cast<double>(cost.gradient_elements),
               trained = static_cast<double>(cost.trained_elements);
    layers.push_back({.weights = static_cast<double>(cost.weight_bytes),
                      .gradient = static_cast<double>(cost.gradient_bytes),
                      .update = gradients * (has_sums ? kFp32 : element) + trained * update,
                      .sum = has_sums ? gradients * (element + 2 * kFp32) : 0,
                      .updated = trained * element,
                      .input = static_cast<double>(cost.input_bytes),
                      .accumulator = kFp32 * gradients,
                      .expanded = static_cast<double>(cost.expanded_bytes),
                      .saved = static_cast<double>(cost.saved_bytes),
                      .forward_workspace = static_cast<double>(cost.forward_workspace_bytes),
                      .backward_workspace = static_cast<double>(cost.backward_workspace_bytes)});
  }
  return layers;
}

}  // namespace rp
