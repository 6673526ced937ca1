#include "launcher/process/worker_attach.h"

#include <cstdio>
#include <iostream>
#include <optional>
#include <utility>

#include "common/text.h"
#include "launcher/process/watching_tool.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

Message receive_kind(Channel& channel, MessageKind kind, const char* what, Patience& patience) {
  while (true) {
    std::optional<Message> message = channel.receive(Deadline::after_ns(100 * kNsPerMs));
    if (message && message->kind == kind) return std::move(*message);
    if (channel.peer_gone()) {
      throw Error(ExitCode::kLauncherFailed, cat("rp-launch is gone while this process waited for ", what));
    }
    if (!message && patience.left_ns() <= 0) {
      throw Error(ExitCode::kHang, cat("rp-launch did not send ", what, " in time; is it stopped (state T in ps)?"));
    }
  }
}

}  // namespace

Message receive_attach(Channel& channel, Patience& patience) {
  return receive_kind(channel, MessageKind::kAttach, "the host store", patience);
}

Message receive_restart(Channel& channel, Patience& patience) {
  return receive_kind(channel, MessageKind::kRestart, "the host store of the process before this one", patience);
}

void confirm_attached(Channel& channel, Patience& patience) {
  std::cout.flush();
  std::fflush(nullptr);
  Message attached;
  attached.kind = MessageKind::kAttached;
  attached.status = watching_tool().empty() ? 0 : 1;
  if (!channel.send(attached) && !channel.peer_gone()) {
    throw Error(ExitCode::kLauncherFailed, "rp-launch does not read this worker's messages; is it stopped?");
  }
  (void)receive_kind(channel, MessageKind::kOutputOpen, "the go-ahead", patience);
}

}  // namespace rp
