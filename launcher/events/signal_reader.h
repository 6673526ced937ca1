// launcher/events/signal_reader.h
// Receives the signals that rp-launch handles, through a descriptor for poll().
#pragma once

#include <signal.h>
#include <sys/signalfd.h>

#include <optional>

#include "common/system/fd.h"

namespace rp {

// Called first in main(): a USR1 that comes before there is a SignalReader is not lost and does not end the process.
// mpirun passes it on at any time, and takes a process that it ends for one that has ended well.
void keep_early_signals();

// Owned by the supervisor.
class SignalReader {
 public:
  // Returns the signals that are handled. HUP and TSTP are left out if this process ignores them.
  [[nodiscard]] static sigset_t handled();

  // REQUIRES: these signals are blocked. Throws rp::Error kNoResource.
  SignalReader();

  [[nodiscard]] int fd() const { return fd_.get(); }
  // Returns the next signal that has arrived; nullopt if there is none.
  [[nodiscard]] std::optional<signalfd_siginfo> next();

 private:
  UniqueFd fd_;
};

// Returns true if no shell of this session watches this process group: its leader's parent belongs
// to another session, or to the same group.
[[nodiscard]] bool is_orphaned_group();

}  // namespace rp
