#include "planner/prediction/emulated_machine.h"

#include "common/checked_files/json_file.h"
#include "common/text.h"
#include "model_files/profile_file.h"
#include "planner/prediction/workload_file.h"
#include "roundpipe/error.h"
#include "scheduler/simulation/predicted_times.h"

namespace rp {

namespace {

constexpr std::uint64_t kMaxMachineBytes = 16 << 20;

bool is_path(const std::string& name) { return name.find('/') != std::string::npos || name.ends_with(".json"); }

void scale(LayerWork& work, double factor) {
  work.forward *= factor;
  work.backward *= factor;
}

EmulatedMachine of_workload(const std::string& path) {
  const WorkloadFile file = read_workload_file(path);
  const DeviceSection& device = file.device;
  const double factor = device.time_scale;
  EmulatedMachine machine;
  machine.workload = file.workload;
  for (LayerWork& layer : machine.workload->layers) scale(layer, factor);
  scale(machine.workload->head, factor);
  machine.workload->hop *= factor;
  machine.hop_ms = machine.workload->hop;
  machine.upload_gbs = device.upload_gbs / factor;
  machine.download_gbs = device.download_gbs / factor;
  machine.optimizer_gbs = device.optimizer_gbs / factor;
  machine.memory_bytes = static_cast<std::uint64_t>(device.memory_gib * kGiB);
  machine.host_memory_bytes = static_cast<std::uint64_t>(device.host_memory_gib * kGiB);
  return machine;
}

EmulatedMachine of_profile(const std::string& name) {
  const GpuProfile gpu = gpu_profile(name).profile;
  const ServerProfile server = server_profile(server_profile_names().front()).profile;
  EmulatedMachine machine;
  machine.gpu = gpu;
  machine.upload_gbs = gpu.host_to_device_gbs;
  machine.download_gbs = gpu.device_to_host_gbs;
  machine.optimizer_gbs = server.optimizer_gbs;
  machine.copy_latency_ms = gpu.copy_latency_us * 1e-3;
  machine.memory_bytes = static_cast<std::uint64_t>(gpu.usable_bytes());
  machine.host_memory_bytes = static_cast<std::uint64_t>(server.memory_gib * kGiB);
  return machine;
}

}  // namespace

EmulatedMachine emulated_machine(const std::string& name) {
  const bool is_workload = is_path(name) && read_json_file(name, kMaxMachineBytes).contains("layers");
  EmulatedMachine machine = is_workload ? of_workload(name) : of_profile(name);
  machine.name = cat(kEmulatedDevice, name);
  return machine;
}

std::vector<LayerWork> EmulatedMachine::layer_times(const std::vector<const LayerCost*>& costs) const {
  std::vector<LayerWork> times;
  if (workload) {
    times = workload->layers;
    times.push_back(workload->head);
    if (times.size() == costs.size()) return times;
    throw Error(ExitCode::kUsage, cat("--device ", name, ": the workload has ", workload->layers.size(),
                                      " layers and a head, the model has ", costs.size(), " layers with its head"));
  }
  for (const LayerCost* cost : costs) {
    if (cost == nullptr) {
      throw Error(ExitCode::kUsage, cat("--device ", name, ": the model has no cost for layer ", times.size(), "; ",
                                        "make the model by models::emulated() (train does so), or give the times in a "
                                        "workload file (--device sim:FILE.json)"));
    }
    times.push_back(predicted_work(*cost, *gpu, Accumulate::kFp32));
  }
  return times;
}

std::vector<double> EmulatedMachine::expansion_times(const std::vector<const LayerCost*>& costs) const {
  std::vector<double> times;
  for (const LayerCost* cost : costs) times.push_back(gpu && cost != nullptr ? expansion_ms(*cost, *gpu) : 0);
  return times;
}

double EmulatedMachine::slowness_of(int gpu_number) const {
  if (!workload || workload->slowness.empty()) return 1;
  return workload->slowness[static_cast<std::size_t>(gpu_number) % workload->slowness.size()];
}

}  // namespace rp
