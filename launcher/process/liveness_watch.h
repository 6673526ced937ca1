// launcher/process/liveness_watch.h
// Ends this process when rp-launch is gone.
//
// rp-launch holds the only write end of a pipe for its life, so the end of file on it is a fact that the kernel
// vouches for: it survives a set-uid exec, which cancels the parent-death signal, and a process in between.
#pragma once

#include <thread>

#include "common/system/fd.h"

namespace rp {

// Owns a thread that waits for the end of file; then the process and, if it leads its process group, that whole group
// get SIGKILL. Destroy it to stop watching.
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
