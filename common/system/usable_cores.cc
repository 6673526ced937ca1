#include "common/system/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "common/system/cgroup.h"

namespace rp {

CpuList allowed_cpus() {
  // Machines with more CPUs than a cpu_set_t holds need a larger mask.
  for (int num_cpus = CPU_SETSIZE; num_cpus <= 64 * CPU_SETSIZE; num_cpus *= 2) {
    const auto free_set = [](cpu_set_t* set) { CPU_FREE(set); };
    const std::unique_ptr<cpu_set_t, decltype(free_set)> set(CPU_ALLOC(num_cpus), free_set);
    const std::size_t size = CPU_ALLOC_SIZE(num_cpus);
    CPU_ZERO_S(size, set.get());
    if (sched_getaffinity(0, size, set.get()) != 0) continue;
    CpuList cpus;
    for (int cpu = 0; cpu < num_cpus; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), size, set.get())) cpus.push_back(cpu);
    }
    return cpus;
  }
  return {0};
}

int usable_cores(const CpuList& allowed, std::optional<double> cpu_quota) {
  int cores = static_cast<int>(allowed.size());
  if (cpu_quota && *cpu_quota < cores) cores = static_cast<int>(std::ceil(*cpu_quota));
  return std::max(1, cores);
}

int optimizer_threads(int usable_cores, int num_gpu_workers) {
  constexpr int kCoresOfAGpuWorker = 2;
  return std::max(1, usable_cores - kCoresOfAGpuWorker * num_gpu_workers);
}

int usable_cores() { return usable_cores(allowed_cpus(), Cgroup::of_this_process().cpu_quota()); }

}  // namespace rp
