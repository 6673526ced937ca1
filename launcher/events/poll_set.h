// launcher/events/poll_set.h
// Waits until any of several descriptors is ready, then calls the handlers of those that are.
#pragma once

#include <poll.h>

#include <functional>
#include <vector>

#include "common/system/clock.h"

namespace rp {

// Create a new one for each wait. Handlers run in the order in which they were added.
class PollSet {
 public:
  // `events`: POLLIN or POLLOUT. An error or hang-up counts as ready.
  void add(int fd, short events, std::function<void()> handler);
  // Waits and runs the handlers of the descriptors that are ready; runs none if the deadline passes
  // first. Throws rp::Error kLauncherFailed.
  void wait(const Deadline& deadline);

 private:
  std::vector<pollfd> fds_;
  std::vector<std::function<void()>> handlers_;
};

}  // namespace rp
