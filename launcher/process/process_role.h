// launcher/process/process_role.h
// Describes the role of a process in a run, and what it inherited from rp-launch.
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
  std::string uuid;         // the GPU is the process's CUDA device 0; empty: the process has no GPU of its own
  int num_sharers = 1;      // number of workers of the run on that GPU
  std::uint64_t bytes = 0;  // smallest GPU memory that any worker of the run has; 0: unknown
};

// What rp-launch passes to a process that it starts. Read once, at the start of a Session.
struct ProcessRole {
  Role role = Role::kAlone;
  int worker = -1;      // number of this worker; -1 in other roles
  int num_workers = 1;  // of this node
  int num_nodes = 1;    // more: the coordinator connects to those of the other nodes
  AssignedGpu gpu;
  bool has_gpus = false;           // rp-launch chose GPUs for the run
  std::optional<Channel> channel;  // this and the next two are absent in role kAlone
  UniqueFd liveness;               // reports end of file when rp-launch is gone
  UniqueFd fault_board;
  bool may_restart = false;   // the coordinator is started again after its death, if it can go on
  bool is_restarted = false;  // it has died, and this process takes its place; kRestart arrives on the channel
  bool only_saves = false;    // the process is restarted to save the state and to end, as if by SIGTERM
  std::string task_file;      // of the coordinator: has a worker compute this task only (rp-launch replay)
  RuntimeSettings settings;

  // Reads the variables and takes ownership of the descriptors that they name. Makes the
  // descriptors close-on-exec and removes all variables listed below, so that programs which this
  // process starts are not mistaken for a part of the run. Call once, before other threads exist.
  // Throws rp::Error: kUsage for a wrong setting, kLauncherFailed if a part of the inheritance is
  // missing.
  [[nodiscard]] static ProcessRole from_environment();

  // Throws rp::Error (kUsage) if the device is "cuda" but rp-launch has chosen no GPUs. A program
  // cannot request GPUs itself after rp-launch has started it: all workers would use the same GPU
  // without knowing of each other. In role kAlone the device is allowed.
  void check_device(const std::string& device) const;
};

// The names of the variables, for rp-launch, which sets them.
inline constexpr const char* kRoleVariable = "RP_ROLE";  // "coordinator", "worker"
inline constexpr const char* kWorkerVariable = "RP_WORKER";
inline constexpr const char* kWorkersVariable = "RP_WORKERS";
inline constexpr const char* kNodesVariable = "RP_NODES";
inline constexpr const char* kGpuVariable = "RP_GPU";
inline constexpr const char* kGpuBytesVariable = "RP_GPU_BYTES";
inline constexpr const char* kGpuSharersVariable = "RP_GPU_SHARERS";
inline constexpr const char* kRestartVariable = "RP_RESTART";  // of the coordinator: "possible", "now", "save"
inline constexpr const char* kTaskFileVariable = "RP_TASK_FILE";
inline constexpr const char* kChannelVariable = "RP_CHANNEL_FD";
inline constexpr const char* kLivenessVariable = "RP_LIVENESS_FD";
inline constexpr const char* kFaultBoardVariable = "RP_FAULT_BOARD_FD";

}  // namespace rp
