// launcher/poll_set.h
// Waits for any of several descriptors, then runs what belongs to those that are ready.
#pragma once

#include <poll.h>

#include <functional>
#include <vector>

#include "common/system/clock.h"

namespace rp {

// Made anew for each wait. Handlers run in the order in which they were added.
class PollSet {
 public:
  // `events`: POLLIN, POLLOUT. An error or hang-up counts as ready.
  void add(int fd, short events, std::function<void()> handler);
  // Runs the handlers of what is ready, none if the deadline passes first. Throws rp::Error kLauncherFailed.
  void wait(const Deadline& deadline);

 private:
  std::vector<pollfd> fds_;
  std::vector<std::function<void()>> handlers_;
};

}  // namespace rp
