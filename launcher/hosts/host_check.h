// launcher/hosts/host_check.h
// Asks hosts whether a run can start on them: whether they can be reached, and have the program and its GPUs.
#pragma once

#include <functional>
#include <vector>

#include "common/system/clock.h"
#include "launcher/events/poll_set.h"
#include "launcher/hosts/host_process.h"
#include "launcher/hosts/mpirun_command.h"
#include "launcher/machine/child_process.h"

namespace rp {

// Starts mpirun for each host of the run, at the same time, with an rp-launch that only answers a question, which
// `options` of the run say: for example --dry-run, to prepare the run. `mpirun`: how to start it. `wait`: waits for the
// descriptors, and perhaps others, until the deadline, and returns false to end the wait for all hosts.
[[nodiscard]] std::vector<HostAnswer> ask_hosts(const NodesCommand& run, const ChildSpec& mpirun,
                                                const std::function<bool(PollSet&, const Deadline&)>& wait);

}  // namespace rp
