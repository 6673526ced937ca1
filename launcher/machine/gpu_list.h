// launcher/machine/gpu_list.h
// Selects the GPUs of a run, one for each worker, and determines which of them each worker sees.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/machine/gpu_system.h"

namespace rp {

// A parsed request for GPUs.
struct GpuRequest {
  enum class Kind { kAll, kCount, kList };

  std::string asked{};  // the request as written, for messages: "--gpus 0,2"
  Kind kind = Kind::kAll;
  int count = 0;                     // for kCount
  std::vector<std::string> words{};  // for kList: indices, and UUIDs or their prefixes, with repeats
};

// Parses "all", a number or a list. "0" is a list, since a run cannot have zero GPUs, and so is
// "5,". `name`: "--gpus", "RP_GPUS". Throws rp::Error (kUsage).
[[nodiscard]] GpuRequest parse_gpus(const std::string& name, const std::string& value);

// The values of CUDA's own environment variables that restrict and order GPUs; nullopt: unset.
struct CudaVariables {
  std::optional<std::string> visible_devices{};
  std::optional<std::string> device_order{};
  [[nodiscard]] static CudaVariables of_this_process();
};

struct GpuChoice {
  std::vector<Gpu> gpus{};  // by worker
  std::string note{};       // a note for the user about the choice; empty if there is none
};

// Chooses a GPU for each worker. Indices and numbers refer to the GPUs that CUDA_VISIBLE_DEVICES
// shows, in its order; without that variable, to all cards in the order of their PCI addresses.
// Throws rp::Error: kNoResource, with a list of what there is, for GPUs that are missing or cannot
// be used; kUsage for more GPUs than there may be workers, for a prefix that several UUIDs have,
// and for a CUDA_VISIBLE_DEVICES that names a GPU twice.
[[nodiscard]] GpuChoice choose_gpus(const GpuRequest& request, const GpuSystem& system, const CudaVariables& variables);

// Returns the value of CUDA_VISIBLE_DEVICES for a worker. No other code decides what a worker sees.
// With `signals` "memops" a worker sees its own card only. With "events" it sees all cards of the
// run, because a process can open an event only if it sees the event's card. The worker's own card
// comes first, so it is the worker's CUDA device 0 in both cases. Throws rp::Error (kUsage) for
// "events" on several MIG instances, since CUDA shows a process only one of them.
[[nodiscard]] std::string visible_devices(const std::vector<Gpu>& gpus, std::size_t worker, const std::string& signals);

}  // namespace rp
