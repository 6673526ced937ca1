// launcher/process/liveness_watch.h
// Ends this process when rp-launch is gone.
// rp-launch holds the only write end of a pipe as long as it lives, so the kernel guarantees that
// the read end reports end of file when rp-launch is gone. Unlike the parent-death signal, this
// also works after a set-uid exec and with another process in between.
#pragma once

#include <thread>

#include "common/system/fd.h"

namespace rp {

// Owns a thread that waits for the end of file. It then sends SIGKILL to the process and, if the
// process leads its process group, to the whole group. Destroy this object to stop watching.
class LivenessWatch {
 public:
  // `pipe` is the read end. Throws rp::Error kNoResource.
  explicit LivenessWatch(UniqueFd pipe);
  LivenessWatch(const LivenessWatch&) = delete;
  LivenessWatch& operator=(const LivenessWatch&) = delete;
  ~LivenessWatch();

 private:
  UniqueFd pipe_;
  UniqueFd stop_;
  std::thread thread_;
};

}  // namespace rp
