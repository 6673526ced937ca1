// launcher/process/worker_attach.h
// The worker's side of its start: gets the host store, then has its output opened.
#pragma once

#include "common/system/clock.h"
#include "launcher/process/channel.h"

namespace rp {

// Waits for kAttach, which brings the descriptors of the host store. Throws rp::Error kLauncherFailed if the
// launcher is gone, kHang if the patience is over.
[[nodiscard]] Message receive_attach(Channel& channel, Patience& patience);

// Says that this worker's start succeeded. What it wrote to stdout and stderr until now is dropped, what it writes
// after the return reaches the user. Throws as receive_attach().
void confirm_attached(Channel& channel, Patience& patience);

}  // namespace rp
