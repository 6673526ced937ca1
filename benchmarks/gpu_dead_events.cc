// Tries what happens to waits for a process that is killed. One process makes a CUDA IPC event,
// enqueues seconds of work and records the event after it (or does not; or lets the GPU write a
// word of registered memory after it, by cuStreamWriteValue64). Another process opens the event,
// and the first one gets SIGKILL before or after the work has ended. The following are tried:
// cuEventQuery before and after the death, a cuStreamWaitEvent (for words cuStreamWaitValue64) that
// was enqueued before the death and one after it, and cuEventSynchronize. Each is watched for some
// seconds and then counts as blocked. Every case has two processes of its own.
//
// Prints a line of JSON for each case, with the driver's version (of CUDA: 13000 for 13.0). Exit
// code 69 without a GPU. What it means for the protocol: docs/design/signals.md.
//
//   gpu_dead_events
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include <nlohmann/json.hpp>

#include "benchmarks/dead_events.h"
#include "benchmarks/forked.h"
#include "common/program_main.h"

namespace {

// Runs in a process of its own, since this one must not use CUDA. Reports what is missing if there
// is no GPU.
int driver_version(int& version) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) throw rp::Error(rp::ExitCode::kNoResource, "no pipe; look at ulimit -n");
  rp::Forked child([&] {
    int found = 0;
    (void)rp::cuda_driver().driver_get_version(&found);
    if (write(pipe_ends[1], &found, sizeof(found)) != sizeof(found))
      throw rp::Error(rp::ExitCode::kNoResource, "a pipe broke");
  });
  const int code = child.join(rp::Deadline::after_seconds(60));
  if (code == 0 && read(pipe_ends[0], &version, sizeof(version)) != sizeof(version)) return 1;
  return code;
}

int try_all(int argc) {
  if (argc > 1) throw rp::Error(rp::ExitCode::kUsage, "usage: gpu_dead_events");
  int version = 0;
  if (const int code = driver_version(version); code != 0) return code;
  for (const rp::DeadCase which : rp::kDeadCases) {
    nlohmann::ordered_json line = {{"case", rp::dead_case_name(which)}, {"driver_version", version}};
    for (const auto& [name, what] : rp::try_dead_case(rp::cuda_driver, which, {})) line[name] = what;
    std::cout << line.dump() << "\n" << std::flush;
  }
  return 0;
}

}  // namespace

int main(int argc, char**) {
  // As rp-launch does, so that a stream that waits does not hold up another one in the same
  // hardware queue.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  return rp::run_program("gpu_dead_events", [&] { return try_all(argc); });
}
