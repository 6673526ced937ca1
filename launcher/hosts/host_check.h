// launcher/hosts/host_check.h
// Asks hosts whether a run can start on them: whether they can be reached, and have the program and its GPUs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/system/clock.h"
#include "launcher/events/poll_set.h"
#include "launcher/hosts/host_process.h"
#include "launcher/hosts/mpirun_command.h"
#include "launcher/machine/child_process.h"

namespace rp {

// Waits for the descriptors, and perhaps others, until the deadline. Returns false to end the question.
using HostsWait = std::function<bool(PollSet&, const Deadline&)>;

// Starts mpirun once, with an rp-launch on each host that only answers a question, which `options` of the run say: for
// example --dry-run, to prepare the run. `mpirun`: how to start it. `answer`: what an rp-launch prints once if the run
// can start on its host. Returns an empty text if all hosts answer so until the deadline, or else why it is unknown
// whether they can start the run. Then ask_each_host() finds out which one cannot.
[[nodiscard]] std::string ask_hosts_together(const NodesCommand& run, const ChildSpec& mpirun,
                                             const std::string& answer, const Deadline& deadline,
                                             const HostsWait& wait);

// Asks each host by an mpirun of its own, of which at most 16 run at the same time. Hosts that are not asked before
// `wait` returns false have the code kNoResource.
[[nodiscard]] std::vector<HostAnswer> ask_each_host(const NodesCommand& run, const ChildSpec& mpirun,
                                                    const HostsWait& wait);

}  // namespace rp
