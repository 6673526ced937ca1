// launcher/process/worker_attach.h
// Implements the worker's side of the start handshake: it receives the host store, then has its
// output opened.
#pragma once

#include "common/system/clock.h"
#include "launcher/process/channel.h"

namespace rp {

// Waits for kAttach, which carries the descriptors of the host store. Throws rp::Error
// kLauncherFailed if the launcher is gone, kHang if the patience runs out.
[[nodiscard]] Message receive_attach(Channel& channel, Patience& patience);

// Reports that this worker's start succeeded. Output that it wrote to stdout and stderr before is
// dropped; output that it writes after this function returns reaches the user. Throws the same
// errors as receive_attach().
void confirm_attached(Channel& channel, Patience& patience);

}  // namespace rp
