// common/system/usable_cores.h
// Determines how many cores this process may use, and which.
#pragma once

#include <optional>
#include <vector>

namespace rp {

// CPUs, by their numbers in the operating system.
using CpuList = std::vector<int>;

// Returns the CPUs that this process may run on (its affinity mask), on machines of any size.
[[nodiscard]] CpuList allowed_cpus();

// Returns how many cores' worth of work may run at once: the number of allowed CPUs, limited by the
// quota (rounded up); at least 1.
[[nodiscard]] int usable_cores(const CpuList& allowed, std::optional<double> cpu_quota);
// Returns the number of optimizer threads for this many usable cores; at least 1. Two cores are
// left to each worker on a GPU, which enqueues for its GPU from one and has the driver's callbacks
// run on the other. Workers on the processor are not counted, because they compute while the
// optimizer has little to do.
[[nodiscard]] int optimizer_threads(int usable_cores, int num_gpu_workers);

// Returns the number of usable cores of this process, from its affinity mask and the quota of its
// control groups.
[[nodiscard]] int usable_cores();

}  // namespace rp
