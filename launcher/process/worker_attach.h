// launcher/process/worker_attach.h
// Implements the start handshake on the side of the processes that rp-launch hands a host store: a worker receives it,
// then has its output opened; so does a coordinator that takes the place of a dead one.
#pragma once

#include "common/system/clock.h"
#include "launcher/process/channel.h"

namespace rp {

// Waits for kAttach, which carries the descriptors of the host store. Throws rp::Error
// kLauncherFailed if the launcher is gone, kHang if the patience runs out.
[[nodiscard]] Message receive_attach(Channel& channel, Patience& patience);

// Waits for kRestart, which carries the descriptors of the host store of a coordinator that has died. Throws the same
// errors.
[[nodiscard]] Message receive_restart(Channel& channel, Patience& patience);

// Reports that this worker's start succeeded. Output that it wrote to stdout and stderr before is
// dropped; output that it writes after this function returns reaches the user. Throws the same
// errors as receive_attach().
void confirm_attached(Channel& channel, Patience& patience);

}  // namespace rp
