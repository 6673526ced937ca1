// launcher/process/process_role.h
// Which part a process plays in a run, and what it inherited from rp-launch for it.
#pragma once

#include <optional>
#include <string>

#include "common/system/fd.h"
#include "launcher/process/channel.h"
#include "launcher/process/runtime_settings.h"

namespace rp {

enum class Role {
  kAlone,  // started without rp-launch
  kCoordinator,
  kWorker,
};

// The GPU of a worker, as rp-launch chose it.
struct AssignedGpu {
  std::string uuid;         // the GPU is the process's CUDA device 0; "": a process without a GPU of its own
  int num_sharers = 1;      // workers of the run on this GPU
  std::uint64_t bytes = 0;  // in each process of a run on GPUs: the least memory that a worker has; 0: unknown
};

// What rp-launch passes on; read once, at the start of a Session.
struct ProcessRole {
  Role role = Role::kAlone;
  int worker = -1;  // of a worker
  int num_workers = 1;
  AssignedGpu gpu;
  bool has_gpus = false;           // rp-launch chose GPUs for the run
  std::optional<Channel> channel;  // this and the next two: absent when alone
  UniqueFd liveness;               // end of file: rp-launch is gone
  UniqueFd fault_board;
  RuntimeSettings settings;

  // Takes the descriptors over: makes them close-on-exec and removes all variables named below, so that the
  // programs that this one starts are not mistaken for a part of the run. Call once, before other threads exist.
  // Throws rp::Error: kUsage for a wrong setting, kLauncherFailed for an incomplete inheritance.
  [[nodiscard]] static ProcessRole from_environment();

  // Throws rp::Error (kUsage) for the device "cuda" in a run of rp-launch that has no GPUs: a program that wants them
  // itself comes too late, its workers would all have the same GPU without knowing of each other. Alone it may.
  void check_device(const std::string& device) const;
};

// The variables' names, for the side that sets them.
inline constexpr const char* kRoleVariable = "RP_ROLE";  // "coordinator", "worker"
inline constexpr const char* kWorkerVariable = "RP_WORKER";
inline constexpr const char* kWorkersVariable = "RP_WORKERS";
inline constexpr const char* kGpuVariable = "RP_GPU";
inline constexpr const char* kGpuBytesVariable = "RP_GPU_BYTES";
inline constexpr const char* kGpuSharersVariable = "RP_GPU_SHARERS";
inline constexpr const char* kChannelVariable = "RP_CHANNEL_FD";
inline constexpr const char* kLivenessVariable = "RP_LIVENESS_FD";
inline constexpr const char* kFaultBoardVariable = "RP_FAULT_BOARD_FD";

}  // namespace rp
