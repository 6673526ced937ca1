// launcher/machine/gpu_list.h
// Which GPUs a run gets, one worker each, and what each worker sees of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/machine/gpu_system.h"

namespace rp {

// What was asked for.
struct GpuRequest {
  enum class Kind { kAll, kCount, kList };

  std::string asked{};  // "--gpus 0,2", as messages call it
  Kind kind = Kind::kAll;
  int count = 0;                     // of kCount
  std::vector<std::string> words{};  // of kList: indices and UUIDs or their beginnings; one may be there several times
};

// "all"; a number; a list. "0" is a list, since a run on no GPU is none, and so is "5,". `name`: "--gpus", "RP_GPUS".
// Throws rp::Error (kUsage).
[[nodiscard]] GpuRequest parse_gpus(const std::string& name, const std::string& value);

// What CUDA's own variables allow of the machine's GPUs; nullopt: unset.
struct CudaVariables {
  std::optional<std::string> visible_devices{};
  std::optional<std::string> device_order{};
  [[nodiscard]] static CudaVariables of_this_process();
};

struct GpuChoice {
  std::vector<Gpu> gpus{};  // one a worker
  std::string note{};       // what the person should know about it; empty: nothing
};

// Indices and numbers count what CUDA_VISIBLE_DEVICES shows, in its order; without it all cards, by PCI address. Throws
// rp::Error: kNoResource with what there is for GPUs that are missing or cannot be used, kUsage for more than there may
// be workers, a UUID's beginning that fits several, a CUDA_VISIBLE_DEVICES that names one twice.
[[nodiscard]] GpuChoice choose_gpus(const GpuRequest& request, const GpuSystem& system, const CudaVariables& variables);

// The value of CUDA_VISIBLE_DEVICES for a worker: the one place that decides what a worker sees. With `signals`
// "memops" its own card only; with "events" all of the run's, since who opens another's event must see its card. Its
// own card comes first: it is the worker's CUDA device 0 either way. Throws rp::Error (kUsage) for "events" on several
// MIG instances, of which CUDA shows a process one.
[[nodiscard]] std::string visible_devices(const std::vector<Gpu>& gpus, std::size_t worker, const std::string& signals);

}  // namespace rp
