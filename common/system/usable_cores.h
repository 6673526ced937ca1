// common/system/usable_cores.h
// How many cores this process may use, and which.
#pragma once

#include <optional>
#include <vector>

namespace rp {

// CPUs by their numbers in the operating system.
using CpuList = std::vector<int>;

// The CPUs that this process may run on (its affinity mask), of machines of any size.
[[nodiscard]] CpuList allowed_cpus();

// How many cores' worth of work may run at once: the allowed CPUs, cut to the quota (rounded up); at least 1.
[[nodiscard]] int usable_cores(const CpuList& allowed, std::optional<double> cpu_quota);
// Threads for the optimizer on this many usable cores: without two for each worker on a GPU, which enqueues for its GPU
// from one and has the driver's callbacks run on the other; at least 1. Workers on the processor count for nothing,
// since they compute while the optimizer has little to do.
[[nodiscard]] int optimizer_threads(int usable_cores, int num_gpu_workers);

// Of this process: by its affinity mask and the quota of its control groups.
[[nodiscard]] int usable_cores();

}  // namespace rp
