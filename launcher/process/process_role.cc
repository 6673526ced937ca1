#include "launcher/process/process_role.h"

#include <fcntl.h>

#include <cstdlib>

#include "common/nodes.h"
#include "common/text.h"
#include "hoststore/control.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

std::string required_value(const char* name) {
  const auto value = environment_value(name);
  if (!value) {
    throw Error(ExitCode::kLauncherFailed,
                cat(kRoleVariable, " is set but ", name, " is not; start the program through rp-launch, or unset ",
                    kRoleVariable));
  }
  return *value;
}

UniqueFd take_descriptor(const char* name) {
  const int fd = parse_count(name, required_value(name), 3, 1 << 24);
  if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    throw Error(
        ExitCode::kLauncherFailed,
        cat(name, " names descriptor ", fd,
            ", which is not open; a program between rp-launch and this one must not close inherited descriptors"));
  }
  return UniqueFd(fd);
}

void take_inheritance(ProcessRole& role) {
  role.num_workers = parse_count(kWorkersVariable, required_value(kWorkersVariable), 1, kMaxWorkers);
  if (role.role == Role::kWorker) {
    role.worker = parse_count(kWorkerVariable, required_value(kWorkerVariable), 0, role.num_workers - 1);
    role.gpu.uuid = environment_value(kGpuVariable).value_or("");
    role.gpu.num_sharers =
        parse_count(kGpuSharersVariable, environment_value(kGpuSharersVariable).value_or("1"), 1, kMaxWorkers);
  }
  role.num_nodes = parse_count(kNodesVariable, environment_value(kNodesVariable).value_or("1"), 1, kMaxNodes);
  const auto restart = environment_value(kRestartVariable);
  role.may_restart = restart.has_value();
  role.is_restarted = restart == "now" || restart == "save";
  role.only_saves = restart == "save";
  role.task_file = environment_value(kTaskFileVariable).value_or("");
  const auto gpu_bytes = environment_value(kGpuBytesVariable);
  role.gpu.bytes = std::strtoull(gpu_bytes.value_or("0").c_str(), nullptr, 10);
  role.has_gpus = gpu_bytes.has_value() || !role.gpu.uuid.empty();
  role.channel.emplace(take_descriptor(kChannelVariable));
  role.liveness = take_descriptor(kLivenessVariable);
  role.fault_board = take_descriptor(kFaultBoardVariable);
  for (const char* name : {kRoleVariable, kWorkerVariable, kWorkersVariable, kNodesVariable, kChannelVariable,
                           kLivenessVariable, kFaultBoardVariable, kRestartVariable, kTaskFileVariable, kGpuVariable,
                           kGpuSharersVariable, kGpuBytesVariable}) {
    unsetenv(name);
  }
}

}  // namespace

ProcessRole ProcessRole::from_environment() {
  ProcessRole role;
  if (const auto name = environment_value(kRoleVariable)) {
    const std::string word = parse_choice(kRoleVariable, *name, {"coordinator", "worker"});
    role.role = word == "worker" ? Role::kWorker : Role::kCoordinator;
    take_inheritance(role);
  }
  role.settings = RuntimeSettings::from_environment();
  unsetenv("RP_TRACE");  // a file holds the trace of one run only, not of runs that this program starts
  return role;
}

void ProcessRole::check_device(const std::string& device) const {
  if (device != "cuda" || role == Role::kAlone || has_gpus) return;
  throw Error(ExitCode::kUsage,
              "SessionOptions::device is \"cuda\", but rp-launch was started without GPUs, so its workers have none; "
              "start the run with rp-launch --gpus all (or a number or list), and leave the field unset");
}

}  // namespace rp
